;; load: memory section: .*the memory asks for 65536 pages of 64 KiB to begin with, the limit is 1024
(module (memory (export "memory") 65536))
