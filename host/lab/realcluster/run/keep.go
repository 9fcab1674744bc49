package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// listenerFd is the listener for the API server on the machine's loopback interface.
const listenerFd = 3

// keep runs a cluster until it is told to end. It is two processes: the first holds the lock and
// waits for the second, which is in namespaces of its own. If either is killed, all processes of the cluster are.
func keep(ctx context.Context, name string) error {
	s, err := open(name)
	if err != nil {
		return err
	}
	if !testnet.Inside() {
		held, err := s.lock()
		if err != nil {
			return err
		}
		defer held.Close()
		return testnet.Enter()
	}
	unix.CloseOnExec(listenerFd)
	l, err := net.FileListener(os.NewFile(listenerFd, "listener"))
	if err != nil {
		return fmt.Errorf("the keeper is started by `up`: %w", err)
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	c, err := realcluster.Start(ctx, s.config(o))
	if err != nil {
		return err
	}
	defer c.Close()
	go c.Forward(l)
	if err := c.KubeconfigFor(l.Addr(), s.kubeconfig()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// config returns the configuration of the cluster.
func (s state) config(o options) realcluster.Config {
	return realcluster.Config{
		Name: o.Name, Dir: s.cluster(), Workers: o.Workers, Kernel: o.Kernel, Family: o.Family, Proxy: o.Proxy, Log: os.Stdout,
		Install: realcluster.Installation{
			Repo: o.Repo, Image: o.Image, Tag: o.Tag, AtOnce: true,
			Config: "mode: " + o.Mode + "\nstateBindAddress: 127.0.0.1:10252", Components: []string{"kubectl"},
		},
	}
}
