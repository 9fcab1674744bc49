// Package vm runs programs, test binaries mostly, in a User-Mode Linux: a kernel of a chosen version that is an
// ordinary process of this machine. It needs no rights, no KVM and no modules, and boots in 0.2 s.
//
// The machine's own root is the guest's, read-only (hostfs), so that a program finds its libraries, its tools and its
// test data where they are; /tmp, /run and /dev are the guest's own. The guest has one CPU and no network but what the
// program makes. Do not measure speed in it.
//
// For arm64 there is Debian's kernel in QEMU, which is an ordinary process too, and slow.
package vm
