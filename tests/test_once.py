"""What processes share is made once, and each name is claimed once."""

import multiprocessing
import os
import time

from tests.once import claimed, made_once


def asking(folder, answers):
    def make():
        with open(folder / "made", "a") as file:
            file.write("once\n")
        time.sleep(0.1)  # the others come in the meantime
        return {"by": os.getpid()}

    found = made_once(folder, "it", make)
    answers.put((found, [name for name in "abcdef" if claimed(folder, name)]))


def test_one_process_makes_and_all_have_it(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=asking, args=(tmp_path, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert (tmp_path / "made").read_text() == "once\n"
    assert len({answer["by"] for answer, _ in found}) == 1
    assert sorted(name for _, names in found for name in names) == list("abcdef")
