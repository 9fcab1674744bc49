// Package netlab opens host/internal/netlab to the examples.
package netlab

import "github.com/sluice-proxy/sluice/host/internal/netlab"

// What the examples use of it.
type (
	Lab    = netlab.Lab
	Host   = netlab.Host
	Server = netlab.Server
	Answer = netlab.Answer
)

// See host/internal/netlab.
var (
	Main     = netlab.Main
	Reexec   = netlab.Reexec
	Inside   = netlab.Inside
	New      = netlab.New
	Greeting = netlab.Greeting
	Refused  = netlab.Refused
)
