// Package netlab is the part of host/internal/netlab that the examples use: networks of namespaces for programs that
// are not tests of the host.
package netlab

import "github.com/sluice-proxy/sluice/host/internal/netlab"

// A Lab is a node with hosts around it; hosts run servers, which give answers.
type (
	Lab    = netlab.Lab
	Host   = netlab.Host
	Server = netlab.Server
	Answer = netlab.Answer
)

// Entering namespaces (Main, Reexec, Inside), making a Lab in them, and telling refusals from other errors.
var (
	Main    = netlab.Main
	Reexec  = netlab.Reexec
	Inside  = netlab.Inside
	New     = netlab.New
	Refused = netlab.Refused
)
