package statuspage

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
)

// Limits of a History: entries, those of one step, bytes of a text, and frontends of a step whose Services are named.
const (
	maxEntries     = 500
	maxStepEntries = 10
	maxText        = 400
	maxNamed       = 200
)

// Kinds of an Entry.
const (
	KindChange  = "change"
	KindFailure = "failure"
	KindRepair  = "repair"
	KindPolicy  = "policy" // a guard, a panic hold, or connections that a policy ends
)

// Entry is something that has happened on this node.
type Entry struct {
	At      time.Time
	Kind    string
	Subject string // the Services, or what else it is about
	Text    string
	Took    time.Duration // of a change, until the kernel had it; 0: not known
	Times   int           // that it has happened one after the other; At is that of the last
}

// History observes the engine. It keeps the last entries, and counts what may have changed the state of the node.
type History struct {
	engine.Observers // none: the other methods do nothing

	mu      sync.Mutex
	entries []Entry // a ring
	next    int
	version uint64
	change  *Entry // planned, and not applied yet
}

// NewHistory returns an empty History.
func NewHistory() *History { return &History{} }

// Version changes whenever a step has been planned or programmed, or connections have been read.
func (h *History) Version() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// Last returns the last entries of a kind, "" for all, the latest first.
func (h *History) Last(kind string) (out []Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.entries {
		at := (h.next - 1 - i + 2*len(h.entries)) % len(h.entries)
		if e := h.entries[at]; kind == "" || e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// add adds an entry. The caller holds the lock.
func (h *History) add(e Entry) {
	e.At, e.Subject, e.Text, e.Times = e.At.UTC(), cut(e.Subject), cut(e.Text), 1
	if n := len(h.entries); n > 0 && e.Kind != KindChange { // such as a failure at each retry
		if last := &h.entries[(h.next-1+n)%n]; last.Kind == e.Kind && last.Subject == e.Subject && last.Text == e.Text {
			last.At, last.Times = e.At, last.Times+1
			return
		}
	}
	if len(h.entries) < maxEntries {
		h.entries = append(h.entries, e)
		h.next = len(h.entries) % maxEntries
		return
	}
	h.entries[h.next] = e
	h.next = (h.next + 1) % maxEntries
}

func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// OnPlan implements engine.Observer.
func (h *History) OnPlan(s *engine.PlannedStep) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	r := s.Result
	if d := r.Delta; d != nil && !d.Empty() {
		e := Entry{At: s.At, Kind: KindChange}
		switch n := len(d.Changes); {
		case n == 0:
			e.Subject, e.Text = "this node", "settings of all frontends"
		case n > maxNamed:
			e.Subject, e.Text = "many Services", fmt.Sprintf("%d frontends", n)
		default:
			e.Subject, e.Text = engine.Describe(d)
			e.Subject = strings.ReplaceAll(e.Subject, ",", ", ")
		}
		h.change = &e
	}
	rest := maxStepEntries
	add := func(kind, subject, text string) {
		if rest--; rest >= 0 {
			h.add(Entry{At: s.At, Kind: kind, Subject: subject, Text: text})
		}
	}
	for _, err := range r.Errors {
		add(KindFailure, "policy", err.Error())
	}
	for _, e := range r.ShadowErrors {
		add(KindFailure, e.Service.String(), e.Error())
	}
	for _, e := range r.SettingsErrors {
		add(KindFailure, e.Service.String(), e.Error())
	}
	for i := range r.Holds {
		add(KindPolicy, r.Holds[i].Service.String(), r.Holds[i].String())
	}
	for i := range r.Guards {
		add(KindPolicy, "policy "+r.Guards[i].Policy, r.Guards[i].Text)
	}
}

// OnApply implements engine.Observer.
func (h *History) OnApply(r *engine.ApplyResult) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	for i, e := range r.NewlyFailed {
		if i < maxStepEntries {
			h.add(Entry{At: r.At, Kind: KindFailure, Subject: e.Service.String(), Text: e.Error()})
		}
	}
	e := h.change
	if e == nil {
		e = &Entry{Subject: "this node"}
	}
	switch {
	case r.Err != nil:
		h.add(Entry{At: r.At, Kind: KindFailure, Subject: e.Subject, Text: "programming the kernel failed: " + r.Err.Error()})
	case h.change != nil && r.Attempted:
		e.At, e.Took = r.At, r.Duration
		h.add(*e)
	}
	if r.Err == nil && r.Attempted {
		h.change = nil
	}
}

// OnEvent implements engine.Observer.
func (h *History) OnEvent(e engine.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case engine.OutcomesRead, engine.ConnectionsCounted:
		h.version++
	case engine.DriftDetected:
		h.version++
		by := e.Processes
		if by == "" {
			by = "another process"
		}
		h.add(Entry{At: e.At, Kind: KindRepair, Subject: by, Text: fmt.Sprintf("%d changes to what sluice programs; repaired: %s", e.Count, strings.TrimSpace(e.Objects))})
	case engine.ConnectionsReset, engine.ConnectionsShed:
		what, subject := "reset: the drain deadline of their endpoint has passed", "connections"
		if e.Kind == engine.ConnectionsShed {
			what = "reset: their policy sheds them"
		}
		switch {
		case e.Err != nil:
			h.add(Entry{At: e.At, Kind: KindFailure, Subject: subject, Text: "resetting connections failed: " + e.Err.Error()})
		case e.Count > 0:
			h.add(Entry{At: e.At, Kind: KindPolicy, Subject: subject, Text: fmt.Sprintf("%d %s", e.Count, what)})
		}
	}
}
