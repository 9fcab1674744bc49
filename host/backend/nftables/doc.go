// Package nftables programs plans into two nf_tables tables, ip sluice and ip6 sluice. The rules rarely change: a Service is only
// elements of a few sets and maps. It is the backend of mode nftables. Mode ipvs has the same tables; Balancing is the part in
// which the modes differ. README.md shows the ruleset.
//
// Rules are built from the expressions of google/nftables. The messages around them are encoded by package nfnl, for type
// information that makes nft print slot numbers, errors that name the frontend, and transactions that fit the socket
// buffer that the kernel granted.
package nftables
