package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// nfTables is a connection to nf_tables.
type nfTables struct{ *nfnl.Conn }

func openNFTables() (nfTables, error) {
	c, err := nfnl.Open(0, nfnl.DefaultSendBuffer)
	if err != nil {
		return nfTables{}, fmt.Errorf("kube-proxy's leftovers: %w", err)
	}
	c.AllowInconsistent = true // others may write meanwhile, and kube-proxy does not
	return nfTables{c}, nil
}

// noNFTables are the errors of kernels without nf_tables, or without it for a family.
var noNFTables = []error{unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EINVAL}

// list returns the tables of IPv4 and IPv6 with one of these names, or none if the kernel has no nf_tables.
func (c nfTables) list(wanted func(name string) bool) (all []nfnl.Table, err error) {
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		err := c.Tables(family, func(t nfnl.Table, _ string) {
			if wanted(t.Name) {
				all = append(all, t)
			}
		})
		unsupported := slices.ContainsFunc(noNFTables, func(e error) bool { return errors.Is(err, e) })
		if err != nil && !unsupported {
			return nil, fmt.Errorf("kube-proxy's leftovers: %w", err)
		}
	}
	return all, nil
}

// kubeProxyName is the name of its program, and of the tables of its nftables mode.
const kubeProxyName = "kube-proxy"

// nftablesTables are those tables, one for each family.
type nftablesTables struct{}

func (nftablesTables) list(c nfTables) ([]nfnl.Table, error) {
	return c.list(func(name string) bool { return name == kubeProxyName })
}

func (n nftablesTables) find(context.Context) (out []Leftover, err error) {
	c, err := openNFTables()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := n.list(c)
	for _, t := range list {
		out = append(out, Leftover{Location: "nftables, table " + t.String()})
	}
	return out, err
}

func (n nftablesTables) remove(context.Context) error {
	c, err := openNFTables()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := n.list(c)
	for _, t := range list {
		b := nfnl.NewBatch(c.Conn)
		b.DeleteTable(t)
		if derr := b.Commit(); derr != nil && !errors.Is(derr, unix.ENOENT) {
			return fmt.Errorf("kube-proxy's leftovers: %w", derr)
		}
	}
	return err
}
