package agent

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// TestRunRecordsWhatItSees records the objects of a folder and a change, and reports the recording.
func TestRunRecordsWhatItSees(t *testing.T) {
	r := newRig(t, "healthzBindAddress: ''\nmetricsBindAddress: "+freeAddress(t, 4)+"\n")
	r.write("manifests/a.yaml", manifests)
	r.opts.Record = RecordOptions{File: r.path("node.rec"), MaxBytes: 1 << 20, Files: 2}
	stop := r.run()
	recorded := func() (n int64) {
		if s, err := stateclient.OnSocket(r.opts.Socket).Status(t.Context()); err == nil && s.Recording != nil {
			return s.Recording.Bytes
		}
		return 0
	}
	testenv.Eventually(t, "the condition", func() bool { return recorded() > 0 })
	metrics := page(t, "http://"+r.opts.Config.MetricsBindAddress+"/metrics", 200)
	for _, want := range []string{"sluice_recording_active 1", "sluice_recording_dropped_total 0", "sluice_recording_bytes_total "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no metric %s", want)
		}
	}
	r.write("manifests/a.yaml", strings.ReplaceAll(manifests, "10.96.0.1", "10.96.0.77"))
	testenv.Eventually(t, "the condition", func() bool {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
		return err == nil && strings.Contains(strings.Join(x.Frontends, " "), "10.96.0.77")
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(r.path("node.rec"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	reader, err := recording.NewReader(f)
	if err != nil || reader.Header.Node != "n0" {
		t.Fatal(err, reader)
	}
	var seen []string
	for {
		rec, err := reader.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		for _, c := range rec.Changes {
			if c.Service != nil {
				seen = append(seen, c.Service.ClusterIPs[0].String())
			}
		}
	}
	if got := strings.Join(seen, " "); !strings.HasPrefix(got, "10.96.0.1") || !strings.HasSuffix(got, "10.96.0.77") {
		t.Errorf("ClusterIPs: %s", got)
	}
}
