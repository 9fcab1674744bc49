package kube

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func forbidden(resource string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no such role"))
}

func TestOutageIsLoggedOnceForAllResourcesWithReminders(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1000, 0)
	o := &outageTracker{log: slog.New(slog.NewTextHandler(&log, nil)), now: func() time.Time { return now }, message: "it fails", recovered: "it works again", server: "https://x:6443"}
	lines := func(what string, want ...string) {
		t.Helper()
		got := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		if log.Len() == 0 {
			got = nil
		}
		log.Reset()
		if len(got) != len(want) {
			t.Fatalf("%s: %q", what, got)
		}
		for i, w := range want {
			for part := range strings.SplitSeq(w, "; ") {
				if !strings.Contains(got[i], part) {
					t.Errorf("%s: %q has no %q", what, got[i], part)
				}
			}
		}
	}
	o.fail("Services", forbidden("services"))
	o.fail("EndpointSlices", forbidden("endpointslices"))
	o.fail("Services", forbidden("services"))
	lines("a missing role", `level=WARN msg="it fails"; resource=Services; server=https://x:6443; reason="403 Forbidden: services is forbidden: no such role"`)
	if o.reason("EndpointSlices") == "" || o.reason("ServiceCIDRs") != "" || o.ended() == nil {
		t.Errorf("%v", o.failing)
	}
	o.fail("EndpointSlices", apierrors.NewInternalError(errors.New("etcd is away")))
	lines("another reason", "resource=EndpointSlices; etcd is away")
	now = now.Add(61 * time.Second)
	o.fail("Services", forbidden("services"))
	o.fail("EndpointSlices", forbidden("endpointslices"))
	lines("a minute later", `resource="EndpointSlices, Services"; duration=1m1s; failures=5`)
	now = now.Add(61 * time.Second)
	o.fail("Services", forbidden("services"))
	lines("another minute later")
	o.recover("Services")
	lines("one of them works")
	over := o.ended()
	o.recover("EndpointSlices")
	lines("all work", `level=INFO msg="it works again"; duration=2m2s; failures=7`)
	select {
	case <-over:
	default:
		t.Error("the channel is not closed")
	}
	o.recover("Services")
	o.recoverAll()
	lines("nothing to end")
	o.fail("Services", errors.New("refused"))
	o.recoverAll()
	lines("the next one", "reason=refused", "it works again")
}

func TestShortErrorIsOneLineWithoutURL(t *testing.T) {
	page := apierrors.NewGenericServerResponse(http.StatusInternalServerError, "get", schema.GroupResource{Resource: "services"}, "",
		"<html>\n<body>"+strings.Repeat("ö long page\n", 300)+"</body>", 0, true)
	unauthorized := apierrors.NewUnauthorized("Unauthorized")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no connection": {&url.Error{Op: "Get", URL: "https://x/api/v1/services?labelSelector=long", Err: errors.New("dial tcp 192.0.2.1:6443: connect: connection refused")},
			"dial tcp 192.0.2.1:6443: connect: connection refused"},
		"wrapped":       {fmt.Errorf("watch: %w", &url.Error{Op: "Get", URL: "https://x/very/long", Err: errNoResponse}), "connection closed without a response"},
		"a wrong token": {unauthorized, "401 Unauthorized: Unauthorized (is the token or the client certificate valid for this server?)"},
		"a page":        {page, "500 Internal Server Error: "},
	} {
		got := shortError(c.err)
		if !strings.HasPrefix(got, c.want) || strings.ContainsAny(got, "\n\r") || len(got) > maxShortError+len("…") || strings.Contains(got, "\uFFFD") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if statusClass(page) == statusClass(unauthorized) || statusClass(errNoResponse) != statusClass(errors.New("x")) {
		t.Error("status classes: one for each status, one for no response")
	}
}

// TestWatchStatusesReportStaleResources tests what metrics and health checks show.
func TestWatchStatusesReportStaleResources(t *testing.T) {
	r := newFixture(t, nil)
	r.server.put(svc("web"), cidr("kubernetes", "10.96.0.0/16"))
	r.server.update(func() { r.server.status["servicecidrs"] = http.StatusNotFound })
	r.run()
	r.waitSynced()
	stale := func() (names, reasons string) {
		for _, c := range r.source.WatchStatuses() {
			names += c.Resource + " "
			if c.StaleFor > 0 {
				reasons += c.Resource + ": " + c.Reason + "\n"
			}
		}
		return names, reasons
	}
	testenv.Eventually(t, "all resources are watched", func() bool { _, why := stale(); return why == "" })
	if names, _ := stale(); names != "services endpointslices node " || r.source.StaleReason() != "" {
		t.Errorf("watched: %q; stale: %q", names, r.source.StaleReason())
	}
	r.letWatchesAge()
	r.server.update(func() { r.server.status["endpointslices"] = http.StatusForbidden })
	r.server.endWatches()
	testenv.Eventually(t, "slices are not watched", func() bool {
		_, why := stale()
		return strings.HasPrefix(why, "endpointslices: 403 Forbidden: ") && strings.Count(why, "\n") == 1
	})
	if away := r.source.StaleReason(); !strings.HasPrefix(away, "API server "+r.server.http.URL+": endpointslices not watched for ") || !strings.Contains(away, "403 Forbidden") {
		t.Errorf("stale: %q", away)
	}
	r.server.update(func() { r.server.status["endpointslices"] = 0; r.server.unreachable = true })
	r.server.endWatches()
	testenv.Eventually(t, "nothing is watched", func() bool {
		_, why := stale()
		return strings.Contains(why, "services: ") && strings.Contains(why, "endpointslices: ") && strings.Contains(why, "node: ") && !strings.Contains(why, "403")
	})
	first := r.source.WatchStatuses()[0].StaleFor
	testenv.Eventually(t, "StaleFor grows", func() bool { return r.source.WatchStatuses()[0].StaleFor > first })
	r.server.update(func() { r.server.unreachable = false })
	testenv.Eventually(t, "all resources are watched again", func() bool { _, why := stale(); return why == "" })

	counts := map[string]uint64{}
	for _, c := range r.source.opt.Client.Requests() {
		if c.Method != http.MethodGet || c.Host != strings.TrimPrefix(r.server.http.URL, "http://") {
			t.Errorf("%+v", c)
		}
		counts[c.Code] += c.Count
	}
	if counts["200"] == 0 || counts["403"] == 0 || counts["404"] == 0 || counts[noResponse] == 0 || len(counts) != 4 {
		t.Errorf("requests by code: %v", counts)
	}
}
