// Package nftables programs plans into the kernel's nf_tables, over netlink, in two tables of its own: ip sluice and
// ip6 sluice. The rules hardly ever change; a Service is nothing but elements of a few sets and maps, so one change
// costs what that change is. README.md shows the ruleset.
//
// Rules are built from the expressions of google/nftables. The messages around them are written here, because three
// things need it: type information that makes nft print slot numbers rightly, errors that name the frontend, and
// transactions that fit the socket buffer that the kernel really granted.
package nftables
