package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

// up starts the keeper and waits until the cluster is ready.
func up(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	s, err := open(o.Name)
	if err != nil {
		return err
	}
	config := s.config(o)
	if err := config.Complete(); err != nil {
		return err
	}
	if s.keeper() != 0 {
		was, err := s.options()
		if err != nil || was != o {
			return fmt.Errorf("a cluster %s runs with other settings: `make cluster-down NAME=%s` first, or choose another NAME", o.Name, o.Name)
		}
		return s.print(o)
	}
	if err := prepare(ctx); err != nil {
		return err
	}
	if s.exists() {
		fmt.Println("removing what is left of a cluster that was not stopped")
	}
	if err := s.clean(o.Name); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := s.save(o); err != nil {
		return err
	}
	if err := s.start(ctx, o.Name); err != nil {
		return errors.Join(err, s.clean(o.Name))
	}
	return s.print(o)
}

func (o *options) check() (err error) {
	if o.Repo, err = os.Getwd(); err != nil {
		return err
	}
	if o.Mode != "nftables" && o.Mode != "ipvs" {
		return fmt.Errorf("mode %q: it must be nftables or ipvs", o.Mode)
	}
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil && o.Mode == "ipvs" && o.Kernel == "" {
		return errors.New("mode ipvs: this kernel has no IPVS (/proc/net/ip_vs): `modprobe ip_vs`, if it has the module, or KERNEL=6.12")
	}
	if o.Proxy != realcluster.Sluice {
		return nil
	}
	if o.Image, err = filepath.Abs(o.Image); err != nil {
		return err
	}
	if _, err := os.Stat(o.Image); err != nil || o.Tag == "" {
		return errors.Join(errors.New("sluice's image is needed, and its tag: use `make cluster`, which builds it"), err)
	}
	return nil
}

// prepare builds what is missing.
func prepare(ctx context.Context) error {
	var missing *programs.Missing
	if _, err := programs.Find(); errors.As(err, &missing) {
		fmt.Printf("building %s, and keeping it in the user's cache: 15 CPU minutes if it is all\n", strings.Join(missing.Names, ", "))
	}
	_, err := programs.Build(ctx, os.Stdout)
	return err
}

// start starts the keeper, shows its log, and returns when it is ready.
func (s state) start(ctx context.Context, name string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer listener.Close()
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	shown, err := os.Open(s.log())
	if err != nil {
		return err
	}
	defer shown.Close()
	cmd := exec.Command("/proc/self/exe", "keep", "-name", name)
	cmd.Args[0] = "cluster"
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{listener}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		_, _ = io.Copy(os.Stdout, shown)
		if _, err := os.Stat(s.kubeconfig()); err == nil {
			return nil
		}
		select {
		case <-ended:
			_, _ = io.Copy(os.Stdout, shown)
			return errors.New("the cluster has not started")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// print says how to use the cluster.
func (s state) print(o options) error {
	tools, err := binaries.Find(binaries.Kubectl)
	if err != nil {
		return err
	}
	path := filepath.Join(o.Repo, "bin") // kubectl-sluice
	if _, err := exec.LookPath(binaries.Kubectl); err != nil {
		path += ":" + tools
	}
	name := ""
	if o.Name != "lab" {
		name = " -name " + o.Name
	}
	fmt.Printf(`
Cluster %s is up. Its log is %s

  export KUBECONFIG='%s' PATH='%s':$PATH
  kubectl get nodes
  kubectl sluice status
  cluster exec%s n1 nft list tables    # a command on a node: cp, n1, n2 ...
  make cluster-down%s
`, o.Name, s.log(), s.kubeconfig(), path, name, strings.Replace(name, " -name ", " NAME=", 1))
	return nil
}

// down stops a cluster.
func down(name string) error {
	s, err := open(name)
	if err != nil {
		return err
	}
	was := s.exists()
	if err := s.clean(name); err != nil {
		return err
	}
	if was {
		fmt.Printf("cluster %s is stopped and removed\n", name)
	} else {
		fmt.Printf("there is no cluster %s\n", name)
	}
	return nil
}
