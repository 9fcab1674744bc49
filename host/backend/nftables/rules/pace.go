package rules

import "time"

// pace keeps transactions short. The kernel works on one from its first message to its commit under a lock that every
// other writer to nf_tables on the node waits for, and how long that takes depends on the machine: so the next one is
// made smaller after one that took long, and larger again later.
type pace struct {
	now   func() time.Time
	bytes int // that a transaction may have; 0: no bound

	// Since begin.
	transactions int
	longest      time.Duration
}

// A transaction is to take no longer than slow; after one that does, the next ones are cut in half.
const (
	slow    = 100 * time.Millisecond
	quick   = slow / 4
	leastTx = 32 << 10
)

func (p *pace) begin() { p.transactions, p.longest = 0, 0 }

func (p *pace) clock() time.Time {
	if p.now == nil {
		return time.Time{}
	}
	return p.now()
}

// took notes how long the kernel was at a transaction of so many bytes.
func (p *pace) took(bytes int, d time.Duration) {
	p.transactions++
	p.longest = max(p.longest, d)
	switch {
	case d > slow && bytes > leastTx:
		p.bytes = min(max(bytes/2, leastTx), defaultSendBuffer)
	case d < quick && p.bytes > 0 && bytes >= p.bytes/2: // a small one tells nothing of larger ones
		if p.bytes *= 2; p.bytes >= defaultSendBuffer {
			p.bytes = 0
		}
	}
}

func (p *pace) full(bytes int) bool { return p.bytes > 0 && bytes >= p.bytes }
