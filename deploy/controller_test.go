package deploy

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestControllerIsReadyWithManifestRights runs the controller as its manifest has it, at a real API server: it is alive, and
// ready once it has the permissions of the manifest.
func TestControllerIsReadyWithManifestRights(t *testing.T) {
	otherUsers(t)
	c := newCluster(t)
	deployment := new(appsv1.Deployment)
	if err := yaml.UnmarshalStrict([]byte(read(t, "kustomize/components/controller/deployment.yaml")), deployment); err != nil {
		t.Fatal(err)
	}
	pod := deployment.Spec.Template.Spec
	main := pod.Containers[0]
	if main.LivenessProbe == nil || main.ReadinessProbe == nil || deployment.Spec.MinReadySeconds < main.LivenessProbe.PeriodSeconds {
		t.Fatal("a rollout does not wait for the first probes")
	}
	c.sh(`kubectl apply --server-side -k deploy/kustomize/crds
kubectl wait --for=condition=Established --timeout=1m crd -l app.kubernetes.io/name=sluice
kubectl -n sluice-system create serviceaccount sluice-controller`)
	run := c.container(main, "--kubeconfig=/etc/sluice/kubeconfig", "--namespace=sluice-system", "--identity=c1")
	run.UID = int(*pod.SecurityContext.RunAsUser)
	c.write(c.config, "sluice.yaml", read(t, "kustomize/base/sluice.yaml"))
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), "sluice-system", "sluice-controller")
	if err != nil {
		t.Fatal(err)
	}
	c.write(c.config, "kubeconfig", read(t, kubeconfig))
	p := c.start(run)
	answers := func(when string, probe *corev1.Probe, want int) {
		t.Helper()
		testenv.Eventually(t, when+": "+probe.HTTPGet.Path, func() bool { code, _ := c.get(main, probe); return code == want }, p.String)
	}
	answers("without permissions", main.LivenessProbe, 200)
	answers("without permissions", main.ReadinessProbe, 503)
	c.sh("kubectl apply --server-side --force-conflicts -f deploy/kustomize/components/controller/rbac.yaml")
	answers("with permissions", main.ReadinessProbe, 200)
	answers("with permissions", main.LivenessProbe, 200)
	if !strings.Contains(p.String(), "this controller writes status") {
		t.Errorf("it does not lead:\n%s", p)
	}
}
