// Package rules programs plans into sluice's nf_tables tables. It is shared by the nftables backend, in which the tables
// also balance connections, and the IPVS backend, in which they do everything else.
package rules
