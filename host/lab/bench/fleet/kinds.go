package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
)

// Names of deploy/kustomize.
const (
	namespace         = "sluice-system"
	account           = "sluice"
	controllerAccount = "sluice-controller"
)

// kindsPath is the path of the kinds of sluice.dev at an API server.
const kindsPath = "/apis/sluice.dev/v1alpha1"

// installKinds installs the kinds of sluice.dev, and gives each agent the permissions of sluice's Pod on its Node.
func (s *environment) installKinds(ctx context.Context, kustomize string, agents int) error {
	for _, args := range [][]string{
		{"create", "namespace", namespace},
		{"apply", "--server-side", "-k", filepath.Join(kustomize, "crds")},
		{"apply", "-f", filepath.Join(kustomize, "base/serviceaccount.yaml"), "-f", filepath.Join(kustomize, "base/rbac.yaml"), "-f", filepath.Join(kustomize, "components/controller/rbac.yaml")},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd", "-l", "app.kubernetes.io/name=sluice"},
	} {
		if _, err := s.Cluster.Kubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	for i := range agents {
		path, err := s.Cluster.PodKubeconfig(ctx, namespace, account, nodeName(i))
		if err == nil {
			err = os.Rename(path, kubeconfig(s.dir, i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// apply creates or changes an object of sluice.dev; path is its resource, with its namespace. As a node it may be its NodeReport.
func (s *environment) apply(ctx context.Context, path, name, asNode string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	r := s.Cluster.Client.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(kindsPath, path, name).
		Param("fieldManager", "bench").Param("force", "true").Body(body)
	if asNode != "" {
		r = r.SetHeader("Impersonate-User", "system:node:"+asNode).SetHeader("Impersonate-Group", "system:masters")
	}
	if _, err := r.DoRaw(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", path, name, err)
	}
	return nil
}

// createPolicies creates policies from to to of a namespace, each for a Service, with settings of its own.
func (s *environment) createPolicies(ctx context.Context, from, to, factor int) error {
	return s.Cluster.Parallel(ctx, to-from, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("policy-%05d", from+i)
		return s.apply(ctx, "namespaces/"+loadgen.Namespace+"/servicepolicies", name, "", map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.ServicePolicyKind, "metadata": metav1.ObjectMeta{Name: name, Namespace: loadgen.Namespace},
			"spec": map[string]any{
				"targetRefs": []map[string]string{{"name": loadgen.ServiceName(from + i)}},
				"plugins":    []map[string]any{{"name": pluginName, "settings": map[string]int{"factor": factor}}},
			},
		})
	})
}

// pluginName is the plugin that all policies use, policyName the one for the whole cluster.
const pluginName, policyName = "near", "all"

func (s *environment) createPlugin(ctx context.Context) error {
	return s.apply(ctx, "serviceplugins", pluginName, "", map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.ServicePluginKind, "metadata": metav1.ObjectMeta{Name: pluginName},
		"spec": map[string]any{"source": map[string]any{"type": "File", "file": map[string]string{"path": "/near.wasm"}}, "use": map[string]any{"settings": []string{"factor"}}},
	})
}

// rollout gives the policy of the cluster to a percentage of the nodes.
func (s *environment) rollout(ctx context.Context, percent int) error {
	return s.apply(ctx, "clusterservicepolicies", policyName, "", map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.ClusterServicePolicyKind, "metadata": metav1.ObjectMeta{Name: policyName},
		"spec": map[string]any{"plugins": []map[string]any{{"name": pluginName}}, "rollout": map[string]int{"percent": percent}},
	})
}

// observed returns the versions of the kinds that a node which has read everything reports.
func (s *environment) observed(ctx context.Context) (o v1alpha1.Observed, err error) {
	for path, into := range map[string]*string{"serviceplugins": &o.ServicePlugins, "servicepolicies": &o.ServicePolicies, "clusterservicepolicies": &o.ClusterServicePolicies} {
		list := &metav1.PartialObjectMetadataList{}
		err := s.Cluster.Client.CoreV1().RESTClient().Get().AbsPath(kindsPath, path).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").Do(ctx).Into(list)
		if err != nil {
			return o, fmt.Errorf("list %s: %w", path, err)
		}
		*into = list.ResourceVersion
	}
	return o, nil
}

// writeReport writes the NodeReport of a node that has everything in force.
func (s *environment) writeReport(ctx context.Context, node string, uid types.UID, observed v1alpha1.Observed, policies int) error {
	return s.apply(ctx, "nodereports", node, node, &v1alpha1.NodeReport{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.NodeReportKind},
		ObjectMeta: metav1.ObjectMeta{
			Name: node, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}},
		},
		Report: v1alpha1.Report{Version: "bench", Observed: observed, PolicyCount: int32(policies),
			Plugins: []v1alpha1.PluginReport{{Name: pluginName, Digest: "sha256:" + strings.Repeat("a", 64)}}},
	})
}
