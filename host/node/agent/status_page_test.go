package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

const pageConfig = `metricsBindAddress: ""
healthzBindAddress: ""
statusPageBindAddress: 127.0.0.1:0
clusterCIDR: 10.0.0.0/8
`

var pageURL = regexp.MustCompile(`serving the status page" url=(\S+)`)

// startPage runs an agent with manifests and a status page, and returns the URL of the page. stop ends the agent before the test
// does.
func startPage(r *rig, manifests string) (url string, stop func()) {
	r.Helper()
	r.write("manifests/all.yaml", manifests)
	before := len(r.log.String())
	end := r.run()
	stop = sync.OnceFunc(func() {
		if err := end(); err != nil {
			r.Error(err)
		}
	})
	r.Cleanup(stop)
	testenv.Succeeds(r, "the answer", func() error {
		if m := pageURL.FindStringSubmatch(r.log.String()[before:]); m != nil {
			url = m[1]
			return nil
		}
		return fmt.Errorf("no address in the log:\n%s", r.log)
	})
	return url, stop
}

// shop returns the manifests of Services with an endpoint that serves and one that does not.
func shop(names ...string) string {
	var b strings.Builder
	for i, name := range names {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop, labels: {app: %[1]s}}
spec: {clusterIPs: [10.96.%[2]d.%[3]d], ipFamilies: [IPv4], ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.%[2]d.%[3]d], nodeName: n1, zone: a, targetRef: {kind: Pod, name: %[1]s-a, namespace: shop}, conditions: {ready: true}}
- {addresses: [10.2.%[2]d.%[3]d], nodeName: n2, zone: b, targetRef: {kind: Pod, name: %[1]s-b, namespace: shop}, conditions: {ready: true}}
- {addresses: [10.3.%[2]d.%[3]d], nodeName: n3, zone: c, targetRef: {kind: Pod, name: %[1]s-c, namespace: shop}, conditions: {ready: false}}
---
`, name, i/250, i%250+1)
	}
	return b.String()
}

// getPage returns the answer to a request once it has the wanted status.
func getPage(t testing.TB, url string, status int) (text string) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute}
	testenv.Succeeds(t, "the answer", func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if text = string(b); err == nil && resp.StatusCode != status {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return err
	})
	return text
}

func TestStatusPageShowsServicesAndOneService(t *testing.T) {
	r := newRig(t, pageConfig)
	url, _ := startPage(r, shop("web", "catalog", "api"))
	list := getPage(t, url, http.StatusOK)
	for _, want := range []string{"3 Services", `href="/service?name=web&amp;namespace=shop"`, "10.96.0.1:80/TCP", ">n0<"} {
		if !strings.Contains(list, want) {
			t.Errorf("the list has no %q:\n%s", want, list)
		}
	}
	if found := getPage(t, url+"?q=shop+CATA", http.StatusOK); !strings.Contains(found, "1 Service of 3") || strings.Contains(found, "name=web") {
		t.Errorf("the search found:\n%s", found)
	}
	one := getPage(t, url+"service?namespace=shop&name=web", http.StatusOK)
	for _, want := range []string{"10.1.0.1:8080", "web-a", "50.0 %", "not eligible", "2 of 3 endpoints get"} {
		if !strings.Contains(one, want) {
			t.Errorf("the Service has no %q:\n%s", want, one)
		}
	}
	getPage(t, url+"service?namespace=shop&name=%3Cb%3E", http.StatusNotFound)
	getPage(t, url+"nothing", http.StatusNotFound)
	for _, page := range []string{"drains", "policies", "activity", "activity?kind=repair"} {
		getPage(t, url+page, http.StatusOK)
	}
	for _, file := range regexp.MustCompile(`/(page|icon)-[0-9a-f]+\.\w+`).FindAllString(list, -1) {
		getPage(t, strings.TrimSuffix(url, "/")+file, http.StatusOK)
	}
}

// TestStatusPageShowsWhatIsNotInForce: a policy that is an object names a plugin that nobody has registered.
func TestStatusPageShowsWhatIsNotInForce(t *testing.T) {
	r := newRig(t, pageConfig)
	url, _ := startPage(r, shop("web")+`apiVersion: sluice.dev/v1alpha1
kind: ServicePolicy
metadata: {namespace: shop, name: near}
spec: {targetRefs: [{group: "", kind: Service, name: web}], plugins: [{name: nowhere}]}
`)
	testenv.Eventually(t, "the page shows the policy", func() bool {
		text := getPage(t, url+"policies", http.StatusOK)
		return strings.Contains(text, "ServicePolicy shop/near") && strings.Contains(text, "nowhere")
	}, func() string { return getPage(t, url+"policies", http.StatusOK) })
}

// TestStatusPageSendsWhatChanges reads the stream of events until an endpoint that is removed is gone from it.
func TestStatusPageSendsWhatChanges(t *testing.T) {
	r := newRig(t, pageConfig)
	url, _ := startPage(r, shop("web"))
	getPage(t, url, http.StatusOK)
	changed := false
	testenv.Succeeds(t, "the answer", func() error { // browsers connect again too
		req, err := http.NewRequest(http.MethodGet, url+"service?namespace=shop&name=web", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		resp, err := (&http.Client{Timeout: 3 * time.Minute}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		for lines := bufio.NewReader(resp.Body); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return fmt.Errorf("the stream ended: %w", err)
			}
			text, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			var parts map[string]string
			if err := json.Unmarshal([]byte(text), &parts); err != nil {
				t.Fatal(err)
			}
			switch live := parts["live"]; {
			case !changed && strings.Contains(live, "10.1.0.1:8080"):
				changed = true
				r.write("manifests/all.yaml", strings.ReplaceAll(shop("web"), "10.1.0.1", "10.1.0.99"))
			case changed && strings.Contains(live, "10.1.0.99:8080") && !strings.Contains(live, "10.1.0.1:8080"):
				return nil
			}
		}
	})
}
