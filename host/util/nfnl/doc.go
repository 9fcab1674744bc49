// Package nfnl talks to the kernel's nf_tables subsystem over netlink: a socket, messages and their attributes, set
// elements, and transactions that stay within the socket buffer and report which object a refused message was about.
package nfnl
