// Package nftables is the backend that programs plans into the kernel's nf_tables, over netlink. The tables and their
// balancing are in package rules; README.md shows the ruleset.
package nftables
