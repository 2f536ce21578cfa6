"""QuanTensor on a GPU: not yet."""
