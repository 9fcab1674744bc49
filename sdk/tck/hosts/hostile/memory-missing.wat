;; load: it does not export memory "memory"
(module)
