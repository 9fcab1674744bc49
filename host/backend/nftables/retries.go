package nftables

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Chains that drop the first refusal of a connection.
const (
	chainRetryRefused = "retry_refused"
	chainRetryOnce    = "retry_once"
)

const (
	// retriesSize bounds the connections of a family that were refused once: 13,000 a second, which take 8 MB. Beyond it, clients
	// are refused at once.
	retriesSize = 1 << 16
	// retryMemory is longer than the second after which a client repeats its SYN, and the three after which it does so if that is
	// lost.
	retryMemory = 5 * time.Second
	// retryPriority is after IPVS (98 to 100), which has to see a refusal, or the next SYN would go to the same endpoint.
	retryPriority = 110
)

func newRetriesSet(s *schema) *set {
	n := s.addSet("refused_once", s.addr, portField, s.addr, portField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT)
	n.size = retriesSize
	return n
}

// checkRetriesSet returns a mismatch if the set of refused connections is missing.
func (s *schema) checkRetriesSet() error {
	if s.hasRetries() && !s.retries.exists {
		return errSchemaMismatch{"it lacks the set " + s.retries.name}
	}
	return nil
}

// retryChains drop an RST that answers a SYN, once for each connection. Conntrack has already forgotten the connection then, as
// it does when the first answer is an RST (nf_conntrack_proto_tcp.c), and so the SYN that the client repeats begins a new one.
func (r rulesetBuilder) retryChains() []chain {
	base := func(name string, hook int) chain {
		c := r.hook(name, hook, retryPriority,
			r.rule().ctStatus(ctStatusAssured).ret(), // all that a packet of an established connection passes
			// An answer of another rule of this node belongs to a connection that is not confirmed.
			r.rule().ctReply().ctStatus(ctStatusConfirmed).
				tcpFlags(tcpSYN|tcpRST|tcpACK, tcpRST|tcpACK).tcpSequenceZero().gotoChain(chainRetryRefused))
		c.filter = true
		return c
	}
	tcp := func() *ruleBuilder { return r.rule().ctProtocol(unix.IPPROTO_TCP) }
	return []chain{
		base("retry_postrouting", unix.NF_INET_POST_ROUTING),
		base("retry_input", unix.NF_INET_LOCAL_IN),
		r.chain(chainRetryRefused,
			tcp().originalKey(byAddress).in(r.lookups[byAddress].retried).gotoChain(chainRetryOnce),
			tcp().originalDst().in(r.nodePortAddrs).ctProtocol(unix.IPPROTO_TCP).originalKey(byNodePort).in(r.lookups[byNodePort].retried).gotoChain(chainRetryOnce)),
		r.chain(chainRetryOnce,
			tcp().originalConnection().in(r.retries).ret(),
			tcp().originalConnection().change(r.retries, unix.NFT_DYNSET_OP_ADD, retryMemory).counter().drop(),
			r.rule().counter()), // no room
	}
}

// Retries counts connections that were refused and are to be tried again, and those for which there was no room.
type Retries struct{ Retried, NoRoom uint64 }

// ReadRetries reads the counters of both families, in the tables of either mode, with a socket of its own. They stay while sluice
// restarts, and start at 0 with their table or rules.
func ReadRetries(ctx context.Context, netns int) (out Retries, err error) {
	err = readRuleCounters(ctx, netns, chainRetryOnce, func(_ int, packets []uint64) {
		if len(packets) == 3 {
			out.Retried += packets[1]
			out.NoRoom += packets[2]
		}
	})
	return out, err
}
