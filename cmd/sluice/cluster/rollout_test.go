package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: lab.invalid/main, env: [{name: VERSION, value: "1"}]}]
` + "---" + web

// TestRollingUpdate uses the controllers of a real cluster, under load, and kills sluice repeatedly. No connection may fail:
// terminating Pods still serve for a while, like Pods with a preStop hook.
func TestRollingUpdate(t *testing.T) {
	s := newScene(t, "rollout")
	n1 := s.nodes["n1"]
	s.kubelets(2 * time.Second)
	s.apply(deployment)
	r := s.run("n1", "")
	vip := s.vip("web", false)
	s.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
	first := s.live()
	if len(first) != 3 {
		t.Fatalf("running: %v", first)
	}
	s.expect(n1.client, vip, strings.Join(first, " "))
	stop := s.load(n1.client, vip)

	s.apply(strings.Replace(deployment, `value: "1"`, `value: "2"`, 1))
	s.eventually("the new version is everywhere", func() error {
		r.restartedByKill(nil)
		for _, p := range s.live() {
			if slices.Contains(first, p) {
				return fmt.Errorf("%s is still there", p)
			}
		}
		return nil
	})
	s.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
	s.expect(n1.client, vip, strings.Join(s.live(), " "))

	s.kubectl("scale", "deployment/web", "--replicas=5")
	r.restartedByKill(nil)
	s.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
	s.expect(n1.client, vip, strings.Join(s.live(), " "))
	s.kubectl("scale", "deployment/web", "--replicas=1")
	r.restartedByKill(nil)
	s.eventually("one is left", func() error {
		if live := s.live(); len(live) != 1 {
			return fmt.Errorf("%v", live)
		}
		return nil
	})
	s.expect(n1.client, vip, s.live()[0])
	stop()
}
