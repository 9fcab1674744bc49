// Package simulation computes what policies decide on every node of a cluster over a timeline, in virtual time, and what follows
// for the load of endpoints and zones. It is pure: no I/O, no clock, no goroutine.
package simulation
