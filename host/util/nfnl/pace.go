package nfnl

import "time"

// Pacer keeps transactions short. The kernel processes one, from its first message to its commit, under a lock that all
// other writers to nf_tables on the node wait for. How long that takes depends on the machine: after a slow transaction
// the next ones are made smaller, until they are fast again.
type Pacer struct {
	Now func() time.Time // nil: transactions are counted, not timed

	// Since Reset: the number of transactions and the duration of the longest one.
	Transactions int
	Longest      time.Duration

	maxBytes int // of a transaction; 0: unlimited
}

// A transaction should take at most MaxTxTime. After one that takes longer, the limit is halved, down to MinTxBytes.
const (
	MaxTxTime  = 100 * time.Millisecond
	MinTxBytes = 32 << 10
	fastTxTime = MaxTxTime / 4
)

// Reset clears the counters.
func (p *Pacer) Reset() { p.Transactions, p.Longest = 0, 0 }

func (p *Pacer) now() time.Time {
	if p.Now == nil {
		return time.Time{}
	}
	return p.Now()
}

// observe records how long the kernel took for a transaction.
func (p *Pacer) observe(bytes int, d time.Duration) {
	p.Transactions++
	p.Longest = max(p.Longest, d)
	switch {
	case d > MaxTxTime && bytes > MinTxBytes:
		p.maxBytes = min(max(bytes/2, MinTxBytes), DefaultSendBuffer)
	case d < fastTxTime && p.maxBytes > 0 && bytes >= p.maxBytes/2: // a small one does not predict larger ones
		if p.maxBytes *= 2; p.maxBytes >= DefaultSendBuffer {
			p.maxBytes = 0
		}
	}
}

// Full reports whether a transaction of this size should be committed before more is added.
func (p *Pacer) Full(bytes int) bool { return p.maxBytes > 0 && bytes >= p.maxBytes }
