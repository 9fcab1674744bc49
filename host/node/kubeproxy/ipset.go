package kubeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ipsets are the sets that the iptables rules of its IPVS mode refer to.
type ipsets struct{}

// From linux/netfilter/ipset/ip_set.h.
const (
	ipsetList         = 7 // IPSET_CMD_LIST
	ipsetAttrProtocol = 1
	ipsetAttrName     = 2
	ipsetAttrFlags    = 6
	ipsetNamesOnly    = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	ipsetProtocol     = 6
)

// list returns names only: sets can have as many entries as the cluster has endpoints.
func (ipsets) list() (names []string, err error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|ipsetList, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(ipsetAttrProtocol, []byte{ipsetProtocol}))
	req.AddData(nl.NewRtAttr(ipsetAttrFlags|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, ipsetNamesOnly)))
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return nil, nil // not in this kernel
	case err != nil:
		return nil, fmt.Errorf("kube-proxy's leftovers: list ipsets: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		if name := nfnl.Text(nfnl.Attr(m[nl.SizeofNfgenmsg:], ipsetAttrName)); isKubeProxySet(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (i ipsets) find(context.Context) ([]Leftover, error) {
	names, err := i.list()
	if len(names) == 0 {
		return nil, err
	}
	return []Leftover{{Location: "ipset", Kind: "sets", Count: len(names)}}, nil
}

func (i ipsets) remove(context.Context) error {
	names, err := i.list()
	for _, name := range names {
		if derr := netlink.IpsetDestroy(name); derr != nil {
			err = errors.Join(err, fmt.Errorf("kube-proxy's leftovers: destroy ipset %s: %w", name, derr))
		}
	}
	return err
}
