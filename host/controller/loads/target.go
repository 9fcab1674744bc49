package loads

import (
	"context"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/util/printable"
)

// key is an endpoint that is asked at a port, whichever Services of its namespace it serves.
type key struct {
	namespace string
	port      uint16
	Endpoint
}

// target is an endpoint that is asked, and what it has reported.
type target struct {
	key
	cancel    context.CancelFunc // nil: it is not asked now
	due       time.Time          // when it is asked next
	failures  int                // in a row
	values    map[string]string  // of the last report, by field
	at        time.Time          // of the last report; zero: none
	reporting bool
	err       string // why it is silent
}

// maxError is how many bytes of an error are kept: endpoints write parts of it.
const maxError = 200

func short(err error) string {
	text := printable.Escape(err.Error())
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return text
}

// current returns the values of the last report, nil if it is too old.
func (t *target) current(now time.Time) map[string]string {
	if t.at.IsZero() || now.Sub(t.at) > valid {
		return nil
	}
	return t.values
}

// tried reports whether an endpoint has reported, or has failed to.
func (t *target) tried() bool { return !t.at.IsZero() || t.err != "" }

// goOn takes values that were written before for reports of now, so that a new collector withdraws none that still count.
func (s *service) goOn(now time.Time) {
	written := map[string]map[string]string{}
	for _, e := range s.Written {
		values := make(map[string]string, len(e.Values))
		for name, v := range e.Values {
			values[name] = string(v)
		}
		written[e.Address] = values
	}
	for _, t := range s.targets {
		if values, ok := written[t.Addr.String()]; ok && t.at.IsZero() {
			t.values, t.at = values, now
		}
	}
}
