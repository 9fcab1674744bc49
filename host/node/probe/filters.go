package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// legacyTables is where the kernel lists the tables of legacy iptables in the network namespace of a thread.
const legacyTables = "/proc/thread-self/net/ip%s_tables_names"

// PacketFilter returns which rules of other programs in the network namespace of the calling thread may drop, change or redirect
// forwarded packets of established connections, "" if none do: those that connections in a flowtable pass by. These are
//
//   - base chains of type filter or route at the hooks prerouting, forward and postrouting, for IPv4 and IPv6, whose policy is to
//     drop, or which reach a rule that does more than match, count, log and accept;
//   - tables of legacy iptables with such chains, whose rules are not in nf_tables.
//
// Chains of type nat see the first packet of a connection only.
func PacketFilter() (string, error) {
	for _, family := range []string{"", "6"} {
		name, err := legacyTable(fmt.Sprintf(legacyTables, family))
		if err != nil {
			return "", err
		}
		if name != "" {
			return fmt.Sprintf("legacy iptables has the table ip%s %s, whose rules are not known", family, name), nil
		}
	}
	c, err := nfnl.Open(0, nfnl.DefaultSendBuffer)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.AllowInconsistent = true
	var all []nfnl.Chain
	err = c.Chains(nfnl.Table{Family: unix.AF_UNSPEC}, func(ch nfnl.Chain) {
		ip := slices.Contains([]byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET}, ch.Table.Family)
		passes := slices.Contains([]int{unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING}, ch.Hook)
		if ip && passes && ch.Type != "nat" && !isOwnTable(ch.Table.Name) {
			all = append(all, ch)
		}
	})
	if err != nil {
		return "", err
	}
	for _, ch := range all {
		f := filterFinder{conn: c, table: ch.Table, seen: map[string]bool{}}
		filters := ch.Drop
		if !filters {
			if filters, err = f.filters(ch.Name); err != nil {
				return "", fmt.Errorf("%s %s: %w", ch.Table, ch.Name, err)
			}
		}
		if filters {
			return fmt.Sprintf("the chain %s %s (hook %s) filters packets", ch.Table, ch.Name, hooks[ch.Hook]), nil
		}
	}
	return "", nil
}

// legacyTable returns the first table of a list that sees forwarded packets and is not only for the first packet of a connection.
func legacyTable(file string) (string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if name := s.Text(); name != "nat" {
			return name, nil
		}
	}
	return "", s.Err()
}

// filterFinder looks for a rule that does more than accept, in a chain and those that it leads to.
type filterFinder struct {
	conn  *nfnl.Conn
	table nfnl.Table
	seen  map[string]bool
}

func (f *filterFinder) filters(chain string) (found bool, err error) {
	if f.seen[chain] {
		return false, nil
	}
	f.seen[chain] = true
	var next []string
	err = f.conn.Rules(f.table, chain, func(r nfnl.Rule) {
		does, to := effect(r.Exprs)
		found = found || does
		next = append(next, to...)
	})
	for _, to := range next {
		if err != nil || found {
			break
		}
		found, err = f.filters(to)
	}
	return found, err
}

// harmless are expressions that only match, count or log, if they write nothing: see effect.
var harmless = []string{
	"meta", "ct", "payload", "exthdr", "cmp", "bitwise", "byteorder", "lookup", "range", "fib", "rt", "socket", "osf", "xfrm", "tunnel",
	"hash", "numgen", "counter", "quota", "limit", "connlimit", "last", "log", "immediate", "match", "target", "flow_offload",
}

// Attributes that make expressions more than a match.
var writes = map[string]uint16{
	"meta": unix.NFTA_META_SREG, "ct": unix.NFTA_CT_SREG, "payload": unix.NFTA_PAYLOAD_SREG, "exthdr": unix.NFTA_EXTHDR_SREG,
}

const nfAccept = 1 // NF_ACCEPT

// effect reports whether a rule of these expressions may drop, change or redirect a packet, and the chains that it leads to.
func effect(exprs []byte) (does bool, to []string) {
	for name, data := range nfnl.Exprs(exprs) {
		switch {
		case !slices.Contains(harmless, name):
			return true, nil
		case writes[name] != 0 && nfnl.Attr(data, writes[name]) != nil:
			return true, nil
		case name == "target": // of iptables-nft; MSS is in the first packets only
			if t := nfnl.Text(nfnl.Attr(data, unix.NFTA_TARGET_NAME)); t != "LOG" && t != "TCPMSS" {
				return true, nil
			}
		case name == "lookup": // in a map of verdicts
			if d := nfnl.Attr(data, unix.NFTA_LOOKUP_DREG); d != nil && nfnl.Uint32(d) == unix.NFT_REG_VERDICT {
				return true, nil
			}
		case name == "immediate":
			switch code, chain, ok := nfnl.Verdict(data); {
			case !ok, code == nfAccept, code == unix.NFT_RETURN, code == unix.NFT_CONTINUE:
			case code == unix.NFT_JUMP, code == unix.NFT_GOTO:
				to = append(to, chain)
			default:
				return true, nil
			}
		}
	}
	return false, to
}
