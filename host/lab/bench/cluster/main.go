// Command cluster measures sluice processes in network namespaces: beside kube-proxy (peer), on many nodes (fleet), and for a
// long time beside hostile plugins and tenants (soak). It is not part of bench, whose memory is measured, because it links the
// API client.
package main

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/lab/bench/fleet"
	"github.com/sluice-proxy/sluice/host/lab/bench/peer"
	"github.com/sluice-proxy/sluice/host/lab/bench/soak"
)

var commands = map[string]func(args []string) error{
	"peer": peer.Main, "dataplane": peer.DataPlaneMain, "fleet": fleet.Main, "soak": soak.Main,
	"fleet-policies":    fleet.PoliciesMain,
	fleet.AgentsCommand: fleet.AgentsMain, fleet.ControllerCommand: fleet.ControllerMain, // fleet starts this program
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: bench-cluster peer|dataplane|fleet|fleet-policies|soak [flags]; -h after one of them lists its flags")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
