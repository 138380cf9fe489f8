# CRC-32C by the processor, which pure-Python mode has no words for.

from storage.format.checksum_kernel cimport hardware_crc32c, hardware_crc32c_works
