package nfnl

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// failure is a message that the kernel refused.
type failure struct {
	seq   uint32
	errno unix.Errno
	text  string // the kernel's extended error, usually empty
}

// transact sends a batch whose last message but one has the sequence number last and asks for an acknowledgement. It
// returns the messages that failed, none if the batch was committed, and ErrReplyLost if that is not known.
func (c *Conn) transact(b []byte, last uint32) (failed []failure, err error) {
	if err := c.Await(); err != nil {
		return nil, err
	}
	c.drain()
	return c.result(c.timedSend(b), last)
}

// sent is how a transaction was sent.
type sent struct {
	bytes int
	took  time.Duration
	err   error
}

func (c *Conn) timedSend(b []byte) sent {
	start := c.Pacer.now()
	err := c.send(b)
	return sent{len(b), c.Pacer.now().Sub(start), err}
}

// result receives what the kernel says of a transaction that was sent.
func (c *Conn) result(s sent, last uint32) (failed []failure, err error) {
	c.Pacer.observe(s.bytes, s.took)
	if s.err != nil {
		if s.err == unix.ENOBUFS {
			return nil, fmt.Errorf("%w (%w)", ErrReplyLost, s.err)
		}
		return nil, s.err
	}
	acked := false
	err = c.Receive(func(typ, flags uint16, seq uint32, body []byte) bool {
		if typ != unix.NLMSG_ERROR || len(body) < 20 {
			return false
		}
		if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
			failed = append(failed, failure{seq, unix.Errno(-code), extendedText(flags, body)})
		} else if seq == last {
			acked = true
		}
		return false
	})
	switch {
	case len(failed) > 0:
		return failed, nil
	case err != nil:
		return nil, fmt.Errorf("%w (%w)", ErrReplyLost, err)
	case !acked:
		return nil, ErrReplyLost
	}
	c.Commits++
	return nil, nil
}

// underWay is a transaction that the kernel processes.
type underWay struct {
	batch *Batch
	last  uint32 // as in transact
	sent  chan sent
}

// Await waits for the transaction of Batch.CommitLater, if there is one, and returns its error.
func (c *Conn) Await() error {
	w := c.underWay
	if w == nil {
		return nil
	}
	c.underWay = nil
	failed, err := c.result(<-w.sent, w.last)
	if err != nil || len(failed) > 0 {
		return w.batch.explain(failed, err)
	}
	return nil
}

func extendedText(flags uint16, body []byte) string {
	if flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	return Text(Attr(body[20:], unix.NLMSGERR_ATTR_MSG))
}

// Dump sends one request and calls f with each reply, beginning with its struct nfgenmsg.
func (c *Conn) Dump(req []byte, f func(body []byte)) error {
	if err := c.Send(req); err != nil {
		return err
	}
	var ended bool
	var failed error
	for !ended && failed == nil {
		some := false
		err := c.Receive(func(typ, flags uint16, _ uint32, body []byte) bool {
			some = true
			if c.Interrupted != nil {
				if failed = c.Interrupted(); failed != nil {
					return true
				}
			}
			switch {
			case flags&unix.NLM_F_DUMP_INTR != 0 && !c.AllowInconsistent:
				failed = ErrInterrupted
			case typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR:
				ended = true
				if len(body) >= 4 {
					if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
						failed = unix.Errno(-code)
					}
				}
			case typ>>8 == unix.NFNL_SUBSYS_NFTABLES && len(body) >= 4:
				f(body)
			}
			return ended
		})
		if err != nil {
			return err
		}
		if !some {
			return ErrReplyLost
		}
	}
	return failed
}

// Generation returns the number of the ruleset, which every commit to nf_tables raises. It takes some 30 µs.
func (c *Conn) Generation() (uint32, error) {
	var m Encoder
	m.Begin(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, c.NextSeq(), 0)
	m.End()
	var gen uint32
	err := c.Dump(m.Buf, func(body []byte) { gen = Uint32(Attr(body[4:], unix.NFTA_GEN_ID)) })
	return gen, err
}
