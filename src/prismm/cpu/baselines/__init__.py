"""QuanTensor on a CPU."""
