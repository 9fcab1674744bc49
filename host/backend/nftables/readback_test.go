package nftables

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// fakeKernel stores the messages of transactions and answers requests with them. That is enough of a kernel to read
// back what was written into an empty one, and to garble it.
type fakeKernel struct {
	written []message
	queue   [][]byte
	answers int
	garble  func(n int, answer []byte) []byte // may be nil
}

type message struct {
	kind   uint16
	family byte
	body   []byte // without the struct nfgenmsg
	about  string // the set or chain: NFTA_SET_NAME, NFTA_SET_ELEM_LIST_SET, NFTA_RULE_CHAIN
}

// replyKinds maps the kind of a request to that of its replies, which is the kind that was written.
var replyKinds = map[uint16]uint16{
	unix.NFT_MSG_GETTABLE: unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_GETSET: unix.NFT_MSG_NEWSET,
	unix.NFT_MSG_GETSETELEM: unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_GETCHAIN: unix.NFT_MSG_NEWCHAIN,
	unix.NFT_MSG_GETRULE: unix.NFT_MSG_NEWRULE,
}

func (e *fakeKernel) Send(b []byte) error {
	e.queue = nil
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		typ, flags, seq := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])
		body := slices.Clone(b[unix.NLMSG_HDRLEN+4 : size])
		m := message{typ & 0xff, b[unix.NLMSG_HDRLEN], body, nfnl.Text(nfnl.Attr(body, 2))}
		if typ>>8 == unix.NFNL_SUBSYS_NFTABLES {
			e.take(m, flags, seq)
		}
		b = b[min(nfnl.Align(size), len(b)):]
	}
	return nil
}

func (e *fakeKernel) take(m message, flags uint16, seq uint32) {
	kind, isRequest := replyKinds[m.kind]
	switch {
	case m.kind == unix.NFT_MSG_GETGEN:
		e.answer(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN, seq, 0, nfnl.AppendAttr(nil, unix.NFTA_GEN_ID, []byte{0, 0, 0, 7}))
	case isRequest:
		for _, w := range e.written {
			if w.kind == kind && (m.family == w.family || kind == unix.NFT_MSG_NEWTABLE) && (m.about == "" || m.about == w.about) {
				e.answer(unix.NFNL_SUBSYS_NFTABLES<<8|kind, seq, w.family, w.body)
			}
		}
	case m.kind == unix.NFT_MSG_DELRULE: // all rules of a chain
		e.written = slices.DeleteFunc(e.written, func(w message) bool {
			return w.kind == unix.NFT_MSG_NEWRULE && w.family == m.family && (m.about == "" || m.about == w.about)
		})
	default:
		e.written = append(e.written, m)
	}
	if flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
		e.queue = append(e.queue, netlinkMessage(unix.NLMSG_DONE, seq, make([]byte, 4)))
	} else if flags&unix.NLM_F_ACK != 0 {
		e.queue = append(e.queue, netlinkMessage(unix.NLMSG_ERROR, seq, make([]byte, 20)))
	}
}

func (e *fakeKernel) answer(typ uint16, seq uint32, family byte, body []byte) {
	b := netlinkMessage(typ, seq, append([]byte{family, 0, 0, 0}, body...))
	if e.garble != nil {
		b = e.garble(e.answers, b)
	}
	e.answers++
	e.queue = append(e.queue, b)
}

func netlinkMessage(typ uint16, seq uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, 0) // flags
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // port
	return append(b, body...)
}

func (e *fakeKernel) Receive(buf []byte) (int, error) {
	if len(e.queue) == 0 {
		return 0, unix.EAGAIN
	}
	n := copy(buf, e.queue[0])
	e.queue = e.queue[1:]
	return n, nil
}

func openFake(e *fakeKernel) *Backend {
	b := &Backend{balancing: Slots{}, now: func() time.Time { return time.Unix(1, 0) }, log: slog.New(slog.DiscardHandler)}
	b.conn = nfnl.New(e)
	b.conn.MaxTxBytes, b.conn.MaxReplies = 8<<20, 100
	b.tables = [2]*table{newTable(model.IPv4, b.conn, Slots{}, AffinityLimits{}), newTable(model.IPv6, b.conn, Slots{}, AffinityLimits{})}
	return b
}

// TestLoadersRejectElementsOfAnyLength passes elements of any length to the loaders: they may reject them, not panic.
func TestLoadersRejectElementsOfAnyLength(t *testing.T) {
	refused := 0
	for _, family := range []model.Family{model.IPv4, model.IPv6} {
		table := newTable(family, nfnl.New(&fakeKernel{}), Slots{}, AffinityLimits{})
		table.endpointsSet(1)
		table.targetsSet(1)
		for name, s := range table.byName {
			put := table.loader(s)
			if put == nil {
				continue
			}
			for n := range 48 {
				for _, m := range []int{0, 3, 4, 5, 8, 17, 20} {
					e := nfnl.Element{Key: make([]byte, n), Data: make([]byte, m)}
					if err := put([]nfnl.Element{e}); err != nil {
						refused++
						if !strings.Contains(err.Error(), name) {
							t.Errorf("set %s: %v", name, err)
						}
					}
				}
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

func TestWeightsSaturate(t *testing.T) {
	slots := slices.Repeat([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}, 1<<maxSizeClass)
	if got := reduceWeights(endpointsOf(slots)); len(got) != 1 || got[0].Weight != 1 {
		t.Errorf("%v", got)
	}
}

// FuzzReadBack changes, truncates and flips bits of the kernel's replies about a plan with everything in it. Each four
// bytes of the input are about one reply: its number, an offset, and the bits to flip there (0: truncate).
func FuzzReadBack(f *testing.F) {
	testenv.OnceForAllKernels(f)
	f.Add([]byte{})
	for i := range byte(80) {
		f.Add([]byte{i, 0, 24, 0x55})
		f.Add([]byte{i, 0, 60, 0x55, i, 0, 61, 1, i + 1, 1, 0, 0})
		f.Add([]byte{i, 0, 90, 0, i + 7, 0, 40, 0xff})
	}
	kernel := &fakeKernel{}
	p := probePlan([]model.Family{model.IPv4, model.IPv6})
	if _, err := openFake(kernel).Apply(context.Background(), p, nil); err != nil {
		f.Fatal(err)
	}
	want := plan.Normalize(p, Slots{}.Caps())
	if got, err := openFake(kernel).Read(context.Background()); err != nil {
		f.Fatal(err)
	} else if !got.Equal(want) {
		f.Fatalf("not even without garbling: %v\n%s", err, plan.FormatDiff(want, got))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := &fakeKernel{written: slices.Clone(kernel.written)}
		e.garble = func(n int, b []byte) []byte {
			for op := range slices.Chunk(data, 4) {
				if len(op) < 4 || int(op[0]) != n&255 || len(b) == 0 {
					continue
				}
				at := int(binary.BigEndian.Uint16(op[1:])) % len(b)
				if b[at] ^= op[3]; op[3] == 0 {
					b = b[:at]
				}
			}
			return b
		}
		if _, err := openFake(e).Read(context.Background()); err != nil && !strings.HasPrefix(err.Error(), "nftables: ") {
			t.Errorf("the error does not say what was read: %v", err)
		}
		if _, err := openFake(e).Apply(context.Background(), p, nil); err != nil && !strings.HasPrefix(err.Error(), "nftables: ") {
			t.Errorf("the error does not say what was done: %v", err)
		}
	})
}
