package rules

// Attributes and flags that golang.org/x/sys/unix lacks, from linux/netfilter/nf_tables.h.
const (
	nftaSetExpr       = 17
	nftaSetCount      = 20 // since Linux 6.16
	nftaTableUserdata = 6
)
