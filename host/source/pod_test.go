package source

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func cpu(s string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(s)}}
}

func TestOnlyDeclaredValuesOfPodsAreConverted(t *testing.T) {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1",
			Labels:      map[string]string{"track": "canary", "empty": "", "other": "x", "long": strings.Repeat("x", 64)},
			Annotations: map[string]string{"cap": "5", "long": strings.Repeat("x", model.MaxAnnotation+1), "other": "x"}},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("100m")}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True", LastTransitionTime: metav1.Unix(100, 0)}}},
	}
	name := model.Name{Namespace: "shop", Name: "web-1"}
	for what, c := range map[string]struct {
		keys     *PodKeys
		want     model.Pod
		problems int
	}{
		"nothing": {&PodKeys{}, model.Pod{Name: name}, 0},
		"keys": {&PodKeys{Labels: []string{"empty", "none", "track"}, Annotations: []string{"cap"}},
			model.Pod{Name: name, Labels: map[string]string{"track": "canary", "empty": ""}, Annotations: map[string]string{"cap": "5"}}, 0},
		"too long": {&PodKeys{Labels: []string{"long"}, Annotations: []string{"long"}}, model.Pod{Name: name}, 2},
		"requests": {&PodKeys{Full: true}, model.Pod{Name: name, MilliCPU: 100, ReadySince: 100_000}, 0},
		"all": {nil, model.Pod{Name: name, Labels: map[string]string{"track": "canary", "empty": "", "other": "x"},
			Annotations: map[string]string{"cap": "5", "other": "x"}, MilliCPU: 100, ReadySince: 100_000}, 1},
	} {
		got, problems := Pod(o, c.keys)
		if d := cmp.Diff(&c.want, got); d != "" || len(problems) != c.problems {
			t.Errorf("%s: -want +got\n%s\nproblems: %v", what, d, problems)
		}
		for _, p := range problems {
			if !p.Warning || p.Object != "Pod shop/web-1" || !strings.Contains(p.Field, "[long]") {
				t.Errorf("%s: %+v", what, p)
			}
		}
	}
}

func TestCPUOfAPodIsWhatItRequestsWhileItRuns(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := cpu("2")
	for what, c := range map[string]struct {
		spec corev1.PodSpec
		want int64
	}{
		"none":           {corev1.PodSpec{Containers: []corev1.Container{{}}}, 0},
		"containers":     {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("100m")}, {}, {Resources: cpu("1")}}}, 1100},
		"sidecars":       {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("1")}}, InitContainers: []corev1.Container{{Resources: cpu("8")}, {Resources: cpu("50m"), RestartPolicy: &always}}}, 1050},
		"of the Pod":     {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("1")}}, Resources: &pod}, 2000},
		"less than 1m":   {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("1n")}}}, 1},
		"negative":       {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("-1")}, {Resources: cpu("1")}}}, 1000},
		"absurd":         {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("9E")}, {Resources: cpu("9E")}}}, maxMilliCPU},
		"the maximum":    {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("1M")}, {Resources: cpu("1M")}}}, maxMilliCPU},
		"below the same": {corev1.PodSpec{Containers: []corev1.Container{{Resources: cpu("999999")}}}, 999_999_000},
	} {
		if got, _ := Pod(&corev1.Pod{Spec: c.spec}, nil); got.MilliCPU != c.want {
			t.Errorf("%s: %d, want %d", what, got.MilliCPU, c.want)
		}
	}
}

func TestReadinessTimeOfAPod(t *testing.T) {
	for what, c := range map[string]struct {
		condition corev1.PodCondition
		want      int64
	}{
		"ready":          {corev1.PodCondition{Type: corev1.PodReady, Status: "True", LastTransitionTime: metav1.Unix(5, 999)}, 5000},
		"not ready":      {corev1.PodCondition{Type: corev1.PodReady, Status: "False", LastTransitionTime: metav1.Unix(5, 0)}, 0},
		"another":        {corev1.PodCondition{Type: corev1.PodScheduled, Status: "True", LastTransitionTime: metav1.Unix(5, 0)}, 0},
		"no time":        {corev1.PodCondition{Type: corev1.PodReady, Status: "True"}, 0},
		"before 1970":    {corev1.PodCondition{Type: corev1.PodReady, Status: "True", LastTransitionTime: metav1.Unix(-5, 0)}, 0},
		"after the year": {corev1.PodCondition{Type: corev1.PodReady, Status: "True", LastTransitionTime: metav1.Unix(1<<40, 0)}, 0},
	} {
		got, _ := Pod(&corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{c.condition}}}, nil)
		if got.ReadySince != c.want {
			t.Errorf("%s: %d, want %d", what, got.ReadySince, c.want)
		}
	}
}

func TestPodKeysUnionCoversBoth(t *testing.T) {
	a := PodKeys{Labels: []string{"a", "c"}, Annotations: []string{"x"}}
	b := PodKeys{Labels: []string{"b", "c"}, Full: true}
	u := a.Union(&b)
	if want := (PodKeys{Labels: []string{"a", "b", "c"}, Annotations: []string{"x"}, Full: true}); !cmp.Equal(u, want) {
		t.Errorf("%+v", u)
	}
	if !u.Covers(&a) || !u.Covers(&b) || a.Covers(&b) || b.Covers(&a) || !a.Covers(&PodKeys{}) || a.Covers(&PodKeys{Full: true}) {
		t.Error("covers")
	}
	if (&PodKeys{}).Any() || !a.Any() || !(&PodKeys{Full: true}).Any() {
		t.Error("any")
	}
}

// TestPodsOfOtherNamespacesAreNotTheEndpoints: a slice that names the Pod of another tenant gets none of its values.
func TestPodsOfOtherNamespacesAreNotTheEndpoints(t *testing.T) {
	for _, c := range []struct {
		ref  *corev1.ObjectReference
		want string
	}{
		{nil, ""}, {&corev1.ObjectReference{Kind: "Pod", Name: "web-1"}, "web-1"}, {&corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-1"}, "web-1"},
		{&corev1.ObjectReference{Kind: "Pod", Namespace: "bank", Name: "web-1"}, ""}, {&corev1.ObjectReference{Kind: "VirtualMachineInstance", Name: "web-1"}, ""},
		{&corev1.ObjectReference{Kind: "Pod", Name: strings.Repeat("x", 254)}, ""},
	} {
		if got := podName(c.ref, "shop"); got != c.want {
			t.Errorf("%+v: %q", c.ref, got)
		}
	}
}

func TestSelectorsAreCanonical(t *testing.T) {
	s, _, _ := Service(service(func(o *corev1.Service) {
		o.Spec.Selector = map[string]string{"tier": "", "app": "web"}
		o.Annotations = map[string]string{"capacity": "5", AnnotationPolicy: "p", corev1.LastAppliedConfigAnnotation: "{}"}
	}))
	if s.Selector != "app=web,tier=" || s.Annotations != "capacity\x005\x00" || s.Policy != "p" {
		t.Errorf("%+v", s)
	}
}
