// Command run starts a real Kubernetes cluster on this machine that goes on when the command has ended, and stops it. As root.
//
//	cluster up [-name lab] [-workers 3] [-family ipv4|ipv6|dual] [-proxy sluice|kube-proxy|none] [-mode nftables|ipvs] [-kernel 6.12]
//	cluster exec [-name lab] NODE COMMAND...     runs a command in a node's namespaces
//	cluster down [-name lab]
//
// `make cluster` builds it as bin/cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

func main() {
	realcluster.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: cluster up|exec|down")
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	flags.StringVar(&o.Name, "name", "lab", "name of the cluster")
	if args[0] == "up" {
		flags.IntVar(&o.Workers, "workers", 3, "nodes beside the control plane's, 1 to 8")
		flags.StringVar(&o.Kernel, "kernel", "", "workers are guests of this test kernel, for example 6.12; default: namespaces of this machine's kernel")
		flags.StringVar((*string)(&o.Family), "family", "ipv4", "ipv4, ipv6 or dual")
		flags.StringVar((*string)(&o.Proxy), "proxy", "sluice", "sluice, kube-proxy or none")
		flags.StringVar(&o.Mode, "mode", "nftables", "sluice's: nftables or ipvs")
		flags.StringVar(&o.Image, "image", "bin/sluice-image.tar", "archive of sluice's image")
		flags.StringVar(&o.Tag, "tag", "", "tag of the image in the archive")
	}
	_ = flags.Parse(args[1:])
	if args[0] == "keep" { // up's
		return keep(ctx, o.Name)
	}
	if os.Geteuid() != 0 {
		return errors.New("nodes are namespaces with file systems of their own: run this as root")
	}
	// What the caller has open is not the keeper's.
	if err := unix.CloseRange(3, 1<<20, unix.CLOSE_RANGE_CLOEXEC); err != nil && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	switch args[0] {
	case "up":
		return up(ctx, o)
	case "down":
		return down(o.Name)
	case "exec":
		return execute(ctx, o.Name, flags.Args())
	}
	return fmt.Errorf("no command %q: up, exec or down", args[0])
}

// execute runs a command on a node of a running cluster.
func execute(ctx context.Context, name string, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: cluster exec NODE COMMAND...")
	}
	s, err := open(name)
	if err != nil {
		return err
	}
	if s.keeper() == 0 {
		return fmt.Errorf("no cluster %s is running", name)
	}
	cmd, err := realcluster.Command(ctx, s.cluster(), args[0], args[1:]...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = nil // in the terminal's group
	return cmd.Run()
}
