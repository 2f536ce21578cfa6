"""Sphinx's settings. The theme, its fonts and its scripts are part of the built site: it needs no network."""

from prismm import __version__

project = "prismm"
author = "prismm developers"
copyright = author
release = version = __version__
language = "en"

extensions = ["myst_nb"]
root_doc = "index"
exclude_patterns = ["build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# What is in a notebook was computed by it, in its test.
nb_execution_mode = "off"
# Plain text and images: no scripts of widgets from elsewhere.
nb_mime_priority_overrides = [
    ("html", "image/png", 0),
    ("html", "text/plain", 10),
    ("html", "text/html", None),
]
nb_output_stderr = "remove"

maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
# Examples show prompts and what is printed.
highlight_language = "python"
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_title = "prismm"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "prismm"},
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "show_nav_level": 1,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
