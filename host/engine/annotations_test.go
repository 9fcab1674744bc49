package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
)

// TestAnnotationsThatChangeAllTheTimeDoNotFloodTheLog: each change is another error.
func TestAnnotationsThatChangeAllTheTimeDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, nil)
		r.emit(svc(), eps(1), synced)
		lines := func() int { return strings.Count(r.log.String(), "level=WARN") }
		for minute := range 3 {
			before := lines()
			for i := range 200 {
				change := svc()
				change.Service.Policy, change.Service.Settings = fmt.Sprintf("typo-%d-%d", minute, i), "{}"
				r.emit(change)
			}
			if n := lines() - before; n < 50 || n > 62 {
				t.Errorf("%d lines in a minute:\n%s", n, r.log)
			}
			r.advance(time.Minute)
		}
		if !strings.Contains(r.log.String(), "further ones are not logged") || !strings.Contains(r.log.String(), `no policy \"typo-2-0\"`) {
			t.Errorf("logged:\n%s", r.log)
		}
	})
}
