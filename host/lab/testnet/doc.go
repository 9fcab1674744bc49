// Package testnet builds small networks of Linux network namespaces for tests, benchmarks and the demo: a node in the
// middle, Pods and clients around it on veth pairs, servers that answer with their own name, and dialers that are
// bound to a namespace. Nothing outside the namespaces that it makes is touched.
//
// A process first enters namespaces of its own with Main or Reexec, as root or not; everything else fails without it.
package testnet
