package nftables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// watcher receives what other processes write to nf_tables in this network namespace.
type watcher struct {
	conn     *nfnl.Listener
	onChange func(backend.ExternalChange)
	objects  map[string]int // of the current transaction: what changed, and how often
	count    int
	commits  *atomic.Uint32 // by other processes, completely received
	stopped  atomic.Bool
}

// datagram parses one datagram.
func (l *watcher) datagram(b []byte) {
	for kind, body := range nfnl.Notifications(b) {
		if kind == unix.NFT_MSG_NEWGEN { // at the end of each transaction
			l.commits.Add(1)
			process := ""
			if pid := nfnl.Attr(body[4:], unix.NFTA_GEN_PROC_PID); pid != nil {
				process = fmt.Sprintf("%s (pid %d)", nfnl.Text(nfnl.Attr(body[4:], unix.NFTA_GEN_PROC_NAME)), nfnl.Uint32(pid))
			}
			l.commit(process)
		} else if what := notification(kind, body); what != "" {
			l.note(what)
		}
	}
}

func (l *watcher) overflow() {
	l.note("more than could be received")
	l.commit("")
}

func (l *watcher) note(what string) {
	l.count++
	if len(l.objects) < maxObjects || l.objects[what] > 0 {
		l.objects[what]++
	}
}

// commit reports a transaction that changed our tables.
func (l *watcher) commit(process string) {
	if l.count == 0 {
		return
	}
	var names []string
	for _, what := range slices.SortedFunc(maps.Keys(l.objects), byRank) {
		if n := l.objects[what]; n > 1 {
			what = fmt.Sprintf("%s (%d)", what, n)
		}
		names = append(names, what)
	}
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("and more (%d)", more))
	}
	l.onChange(backend.ExternalChange{Object: strings.Join(names, ", "), Process: process, Count: l.count})
	l.count = 0
	clear(l.objects)
}

// byRank orders tables before chains and sets, and those before their contents.
func byRank(a, b string) int {
	rank := func(s string) int {
		kind, _, _ := strings.Cut(s, " ")
		return slices.Index([]string{"set", "chain", "table"}, kind)
	}
	return cmp.Or(rank(b)-rank(a), strings.Compare(a, b))
}

// notification describes a message, or returns "" if it is about another table.
func notification(kind uint16, body []byte) string {
	var table string
	switch body[0] {
	case unix.NFPROTO_IPV4:
		table = "ip " + tableName
	case unix.NFPROTO_IPV6:
		table = "ip6 " + tableName
	default:
		return ""
	}
	b := body[4:]
	if nfnl.Text(nfnl.Attr(b, unix.NFTA_TABLE_NAME)) != tableName { // this attribute has the same number for all kinds of objects
		return ""
	}
	switch kind {
	case unix.NFT_MSG_NEWTABLE:
		return "table " + table + " written"
	case unix.NFT_MSG_DELTABLE:
		return "table " + table + " deleted"
	case unix.NFT_MSG_NEWCHAIN:
		return "chain " + table + " " + nfnl.Text(nfnl.Attr(b, unix.NFTA_CHAIN_NAME)) + " written"
	case unix.NFT_MSG_DELCHAIN:
		return "chain " + table + " " + nfnl.Text(nfnl.Attr(b, unix.NFTA_CHAIN_NAME)) + " deleted"
	case unix.NFT_MSG_NEWRULE:
		return "rule written in chain " + table + " " + nfnl.Text(nfnl.Attr(b, unix.NFTA_RULE_CHAIN))
	case unix.NFT_MSG_DELRULE:
		return "rule deleted in chain " + table + " " + nfnl.Text(nfnl.Attr(b, unix.NFTA_RULE_CHAIN))
	case unix.NFT_MSG_NEWSET:
		return "set " + table + " " + nfnl.Text(nfnl.Attr(b, unix.NFTA_SET_NAME)) + " written"
	case unix.NFT_MSG_DELSET:
		return "set " + table + " " + nfnl.Text(nfnl.Attr(b, unix.NFTA_SET_NAME)) + " deleted"
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		set := nfnl.Text(nfnl.Attr(b, unix.NFTA_SET_ELEM_LIST_SET))
		if kind == unix.NFT_MSG_NEWSETELEM {
			return "element added to set " + table + " " + set
		}
		return "element deleted in set " + table + " " + set
	}
	return fmt.Sprintf("something in table %s changed (message type %d)", table, kind)
}

// genTracker compares the ruleset's generation with the known commits.
type genTracker struct {
	started    bool
	distance   uint32 // from the known commits to the generation
	suspicious bool   // it had grown at the last check
}

// grown reports whether there were commits that are not known. Less than before is no sign of one: a transaction of ours that
// changed nothing does not count.
func (r *genTracker) grown(distance uint32) bool { return int32(distance-r.distance) > 0 }
