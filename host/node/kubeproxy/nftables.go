package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

var families = []struct {
	name   string
	family nftables.TableFamily
}{{"ip", nftables.TableFamilyIPv4}, {"ip6", nftables.TableFamilyIPv6}}

// listTables returns the tables of IPv4 and IPv6, or none if the kernel has no nf_tables.
func listTables(c *nftables.Conn) ([]*nftables.Table, error) {
	var all []*nftables.Table
	for _, f := range families {
		list, err := c.ListTablesOfFamily(f.family)
		switch {
		case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
			continue
		case err != nil:
			return nil, fmt.Errorf("kube-proxy's leftovers: list tables of %s: %w", f.name, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

func tableLabel(t *nftables.Table) string {
	for _, f := range families {
		if f.family == t.Family {
			return f.name + " " + t.Name
		}
	}
	return t.Name
}

func openNetlink() (*nftables.Conn, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("kube-proxy's leftovers: open a netlink socket: %w", err)
	}
	return c, nil
}

// nftablesTables are the tables of its nftables mode, one for each family.
type nftablesTables struct{}

const kubeProxyName = "kube-proxy"

func (nftablesTables) list() (*nftables.Conn, []*nftables.Table, error) {
	c, err := openNetlink()
	if err != nil {
		return nil, nil, err
	}
	all, err := listTables(c)
	return c, slices.DeleteFunc(all, func(t *nftables.Table) bool { return t.Name != kubeProxyName }), err
}

func (n nftablesTables) find(context.Context) (out []Leftover, err error) {
	_, list, err := n.list()
	for _, t := range list {
		out = append(out, Leftover{Location: "nftables, table " + tableLabel(t)})
	}
	return out, err
}

func (n nftablesTables) remove(context.Context) error {
	c, list, err := n.list()
	if err != nil {
		return err
	}
	for _, t := range list {
		c.DelTable(t)
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("kube-proxy's leftovers: delete table %s: %w", tableLabel(t), err)
		}
	}
	return nil
}
