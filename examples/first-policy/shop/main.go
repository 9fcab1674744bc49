// Command shop runs the boutique on this machine: `shop open MANIFESTS NODE COMMAND…` runs a command on a Node of it, beside the
// Pods with real servers, in network namespaces. There, `shop connect MANIFESTS SERVICE N` makes connections. Nothing outside the
// namespaces changes.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

const usage = `usage: shop open MANIFESTS NODE COMMAND…    run a command on a Node of the shop, such as bash
       shop connect MANIFESTS SERVICE N    from there, make N connections to a Service of namespace shop`

func main() {
	code, err := run(os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "shop: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(out io.Writer, args []string) (code int, err error) {
	switch {
	case len(args) >= 4 && args[0] == "open":
		s, err := readShop(args[1])
		if err != nil {
			return 0, err
		}
		if err := testnet.Enter(); err != nil {
			return 0, fmt.Errorf("cannot create network namespaces: run as root, or enable unprivileged user namespaces: %w", err)
		}
		return s.open(args[2], args[3:])
	case len(args) == 4 && args[0] == "connect":
		n, err := strconv.Atoi(args[3])
		if err != nil || n < 1 || n > maxConnections {
			return 0, fmt.Errorf("%q is not a number of connections from 1 to %d", args[3], maxConnections)
		}
		s, err := readShop(args[1])
		if err != nil {
			return 0, err
		}
		return 0, s.connect(out, args[2], n)
	}
	fmt.Fprintln(os.Stderr, usage)
	return 2, nil
}

// open runs a command on a Node and returns its exit code.
func (s shop) open(node string, command []string) (code int, err error) {
	lab, err := s.build(node)
	if err != nil {
		return 0, err
	}
	defer lab.Close()
	// Ctrl-C is for the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	p, err := lab.Node.Start(cmd)
	if err != nil {
		return 0, err
	}
	err = p.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	return 0, err
}
