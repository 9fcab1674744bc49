;; load: memory section: .*the memory has a minimum of 65536 pages of 64 KiB, the limit is 1024
(module (memory (export "memory") 65536))
