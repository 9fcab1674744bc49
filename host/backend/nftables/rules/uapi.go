package rules

// Attributes and flags that golang.org/x/sys/unix lacks, from linux/netfilter/nf_tables.h.
const (
	nftaSetDescConcat = 2
	nftaSetExpr       = 17
	nftaSetCount      = 20 // since Linux 6.16
	nftaTableUserdata = 6
	nftSetConcat      = 0x80
)
