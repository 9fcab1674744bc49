package nftables

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// grace is the time until no packet is evaluated with rules from before a transaction. It is closed when that is over; nil is
// over.
//
// A packet keeps the rules that it began with, but each of its lookups sees the newest elements: during a frontend's move to a
// set that its rules do not use, it would find the frontend in no set and be dropped. So rules are committed first, and a
// transaction that moves a frontend to sets of theirs waits. Others do not. Elements that are only added affect no frontend that
// exists: a packet to a new frontend may be dropped, as before it existed.
type grace chan struct{}

// addTo adds it to a list, or nil if it is over.
func (g grace) addTo(list []grace) []grace {
	if g != nil {
		select {
		case <-g:
			g = nil
		default:
		}
	}
	if slices.Contains(list, g) {
		return list
	}
	return append(list, g)
}

// gracePeriods waits for grace periods, in a goroutine of its own. Those that begin meanwhile end together.
type gracePeriods struct {
	mu      sync.Mutex
	begun   []grace
	running bool
}

func (p *gracePeriods) begin(g grace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = append(p.begun, g)
	if !p.running {
		p.running = true
		go p.run()
	}
}

func (p *gracePeriods) run() {
	for list := p.take(); len(list) > 0; list = p.take() {
		rcuBarrier()
		for _, g := range list {
			close(g)
		}
	}
}

func (p *gracePeriods) take() []grace {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.begun
	p.begun, p.running = nil, len(list) > 0
	return list
}

// rcuBarrier waits until all packets that are being evaluated now are done. A packet keeps the base chains and rules
// that it found when it came to a hook, but reads the current sets and maps.
func rcuBarrier() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL: an RCU grace period, some 10 ms
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(50 * time.Millisecond) // with nohz_full or a seccomp filter; a packet takes microseconds
	}
}
