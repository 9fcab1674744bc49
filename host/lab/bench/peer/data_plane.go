package peer

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/stats"
)

// target is an address to connect to from a node's client.
type target struct {
	name string
	node *node
	to   netip.AddrPort
}

// block has the results of one block: connections one at a time, then concurrent ones.
type block struct {
	P50, P99 float64 // µs until a connection is established, one at a time
	Rate     float64 // connections a second, workers at a time
}

// Limits of a block.
const (
	connections    = 2000 // one at a time
	workers        = 4
	connectTimeout = 3 * time.Second // for one connection: a lost packet is sent again after one
)

// measureTargets measures targets in alternating blocks: A B … B A in one round, B A … A B in the next. Each target has two
// blocks per round, so that it can be compared with itself. Its blocks are in chronological order.
func (b *bench) measureTargets(paths []target) (map[string][]block, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 2*workers)) // threads block in system calls
	out := map[string][]block{}
	for i := range b.rounds + 1 {
		order := slices.Clone(paths)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		back := slices.Clone(order)
		slices.Reverse(back)
		for _, p := range append(order, back...) {
			got, err := p.measureBlock(b.block)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			if i > 0 { // the first round is a warm-up
				out[p.name] = append(out[p.name], got)
			}
		}
	}
	return out, nil
}

func (p *target) measureBlock(lasting time.Duration) (b block, err error) {
	if err := flushConntrack(p.node.lab.Node); err != nil {
		return b, err
	}
	var times []float64
	err = p.node.client.Do(func() error {
		for until := time.Now().Add(lasting); len(times) < connections && time.Now().Before(until); {
			_, took, err := connect(p.to, connectTimeout)
			if err != nil {
				return err
			}
			times = append(times, took.Seconds()*1e6)
		}
		return nil
	})
	if err != nil {
		return b, err
	}
	s := stats.Summarize(times)
	b.P50, b.P99 = s.Median, s.P99
	b.Rate, err = p.measureRate(lasting)
	return b, err
}

// measureRate returns the connections per second of several threads.
func (p *target) measureRate(lasting time.Duration) (float64, error) {
	var wg sync.WaitGroup
	var counts [workers]int
	var errs [workers]error
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			errs[w] = p.node.client.Do(func() error {
				for until := begin.Add(lasting); time.Now().Before(until); counts[w]++ {
					if _, _, err := connect(p.to, connectTimeout); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	took, sum := time.Since(begin), 0
	for w := range workers {
		if errs[w] != nil {
			return 0, errs[w]
		}
		sum += counts[w]
	}
	return float64(sum) / took.Seconds(), nil
}

// flushConntrack flushes a node's conntrack table, so that all blocks start with the same state.
func flushConntrack(h *testnet.Host) error {
	return h.Do(func() error {
		nl, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer nl.Close()
		if err := nl.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("flush the conntrack table: %w", err)
		}
		return nil
	})
}
