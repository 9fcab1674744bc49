package peer

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/stats"
)

// client is where connections come from.
type client = *testnet.Host

// block has one value of each metric of a workload.
type block []float64

// workload is what clients do, after netperf's tests.
type workload struct {
	name    string
	metrics []string
	more    bool // is better
	run     func(t *target) (block, error)
}

// Sizes of a block.
const (
	newConnections = 400
	workers        = 4
	rateLasts      = 60 * time.Millisecond
	roundTrips     = 1000
	streamWrites   = 128
	writeSize      = 64 << 10
	connectTimeout = 3 * time.Second // a lost packet is sent again after one
)

// The CPU time is that of the client's thread. On veth pairs, it contains the way of the packets through the node, and of the
// answers that the kernel of the server gives.
var (
	connections = workload{"new connection", []string{"CPU, µs", "until it is established, µs: p50", "p99", "conntrack entries"}, false, (*target).connections}
	rate        = workload{fmt.Sprintf("connect, a byte, reset; %d at a time", workers), []string{"connections/s"}, true, (*target).rate}
	requests    = workload{"request and response of a byte, on one connection", []string{"CPU, µs", "µs: p50", "p99"}, false, (*target).requests}
	stream      = workload{"stream, writes of 64 KiB", []string{"CPU of a write, µs"}, false, (*target).stream}
)

// connections opens connections, one at a time.
func (t *target) connections() (b block, err error) {
	times := make([]float64, 0, newConnections)
	var cpu time.Duration
	err = t.from.Do(func() error {
		return pinned(func() error {
			begin := benchutil.ThreadCPU()
			for range newConnections {
				_, took, err := connect(t.to, connectTimeout)
				if err != nil {
					return err
				}
				times = append(times, took.Seconds()*1e6)
			}
			cpu = benchutil.ThreadCPU() - begin
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	entries, err := conntrackEntries(t.node.lab.Node)
	if err != nil {
		return nil, err
	}
	s := stats.Summarize(times)
	return block{microseconds(cpu) / newConnections, s.Median, s.P99, float64(entries) / newConnections}, nil
}

// rate opens connections on several threads.
func (t *target) rate() (block, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 2*workers)) // threads block in system calls
	var all sync.WaitGroup
	var counts [workers]int
	var errs [workers]error
	begin := time.Now()
	for w := range workers {
		all.Go(func() {
			errs[w] = t.from.Do(func() error {
				for until := begin.Add(rateLasts); time.Now().Before(until); counts[w]++ {
					if _, _, err := connect(t.to, connectTimeout); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	all.Wait()
	took, sum := time.Since(begin), 0
	for w := range workers {
		if errs[w] != nil {
			return nil, errs[w]
		}
		sum += counts[w]
	}
	return block{float64(sum) / took.Seconds()}, nil
}

// requests sends a byte and waits for an answer, again and again.
func (t *target) requests() (b block, err error) {
	times := make([]float64, 0, roundTrips)
	var cpu time.Duration
	err = t.established(func(fd int) error {
		one := make([]byte, 1)
		begin := benchutil.ThreadCPU()
		for range roundTrips {
			sent := time.Now()
			if _, err := unix.Write(fd, one); err != nil {
				return err
			}
			if _, err := readSome(fd, one); err != nil {
				return err
			}
			times = append(times, microseconds(time.Since(sent)))
		}
		cpu = benchutil.ThreadCPU() - begin
		return nil
	})
	s := stats.Summarize(times)
	return block{microseconds(cpu) / roundTrips, s.Median, s.P99}, err
}

// stream sends what the server only reads.
func (t *target) stream() (b block, err error) {
	var cpu time.Duration
	err = t.established(func(fd int) error {
		payload := make([]byte, writeSize)
		begin := benchutil.ThreadCPU()
		for range streamWrites {
			for rest := payload; len(rest) > 0; {
				n, err := unix.Write(fd, rest)
				if err != nil {
					return err
				}
				rest = rest[n:]
			}
		}
		cpu = benchutil.ThreadCPU() - begin
		return nil
	})
	return block{microseconds(cpu) / streamWrites}, err
}

// established runs f with a connection, on a thread that stays on its CPU.
func (t *target) established(f func(fd int) error) error {
	return t.from.Do(func() error {
		return pinned(func() error {
			fd, _, err := dial(t.to, connectTimeout)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
				return err
			}
			return f(fd)
		})
	})
}

// pinned runs f on the first CPU. The servers have the last one.
func pinned(f func() error) error {
	var before, first unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	first.Set(0)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		return fmt.Errorf("sched_setaffinity: %w", err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return f()
}

func microseconds(d time.Duration) float64 { return d.Seconds() * 1e6 }

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

// conntrackEntries returns how many connections a node knows.
func conntrackEntries(h *testnet.Host) (n int, err error) {
	err = h.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	})
	return n, err
}
