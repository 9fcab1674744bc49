package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// The service account of deploy/.
const (
	accountNamespace = "sluice-system"
	accountName      = "sluice"
)

// deployed are the manifests of the account and its permissions.
func deployed() ([]string, error) {
	dir, err := filepath.Abs("../../../deploy/kustomize/base")
	if err != nil {
		return nil, err
	}
	return []string{filepath.Join(dir, "namespace.yaml"), filepath.Join(dir, "serviceaccount.yaml"), filepath.Join(dir, "rbac.yaml")}, nil
}

// deploy applies the manifests.
func (l *lab) deploy(ctx context.Context) error {
	files, err := deployed()
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := l.Kubectl(ctx, "", "apply", "-f", f); err != nil {
			return err
		}
	}
	return nil
}

// right is one permission: "list services", "create events.k8s.io/events".
func right(verb, group, resource string) string {
	if group != "" {
		resource = group + "/" + resource
	}
	return verb + " " + resource
}

// granted returns the permissions of sluice's ClusterRole.
func (l *lab) granted(ctx context.Context) ([]string, error) {
	role, err := l.clusterRole(ctx, accountName)
	if err != nil {
		return nil, err
	}
	return rightsOf(role), nil
}

func rightsOf(role *rbacv1.ClusterRole) (out []string) {
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					out = append(out, right(verb, group, resource))
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// lacking are service accounts that lack one permission each.
const lacking = 24

func lacks(i int) string { return fmt.Sprintf("lacks-%d", i) }

// audited are the users whose requests are recorded.
func audited() []string {
	out := []string{account}
	for i := range lacking {
		out = append(out, "system:serviceaccount:"+accountNamespace+":"+lacks(i))
	}
	return out
}

// TestEveryGrantedPermissionIsNeeded removes one permission at a time: the API server must deny a request, and sluice must
// log which.
func TestEveryGrantedPermissionIsNeeded(t *testing.T) {
	s := newScene(t, "rights")
	role, err := s.clusterRole(s.ctx, accountName)
	s.must(err)
	rights, err := s.granted(s.ctx)
	s.must(err)
	if len(rights) > lacking {
		t.Fatalf("%d rights: raise lacking", len(rights))
	}
	s.apply(strings.Replace(web, "name: web}", "name: web, annotations: {sluice.dev/policy: none-such}}", 1))
	for i, missing := range rights {
		t.Run(strings.ReplaceAll(missing, "/", "."), func(t *testing.T) {
			s := &scene{T: t, lab: s.lab, ctx: t.Context(), ns: s.ns, runs: map[string]*run{}}
			s.without(lacks(i), role, missing)
			kubeconfig, err := s.ServiceAccountKubeconfig(s.ctx, accountNamespace, lacks(i))
			s.must(err)
			// First a command that reads the cluster once, then the proxy, until a request is denied.
			r := s.prepare("n1", s.policies(1, ""))
			r.as = kubeconfig
			once, _ := r.command("plan", "--kubeconfig", kubeconfig, "--node", "n1", "--config", r.config)
			r.start("--v", "1")
			verb, resource, _ := strings.Cut(missing, " ")
			_, name, grouped := strings.Cut(resource, "/")
			if !grouped {
				name = resource
			}
			denial := fmt.Sprintf("cannot %s resource %q", verb, name)
			s.eventually("missing "+missing, func() error {
				if !s.refused(lacks(i), missing) {
					return errors.New("the API server has refused nothing")
				}
				if text := strings.ReplaceAll(once+r.log.String(), `\"`, `"`); !strings.Contains(text, denial) {
					return fmt.Errorf("no %q in the output; once:\n%s", denial, once)
				}
				return nil
			})
		})
	}
}

// without creates a service account with all permissions of a role except one.
func (s *scene) without(name string, role *rbacv1.ClusterRole, missing string) {
	s.Helper()
	few := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				verbs := slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool { return right(verb, group, resource) == missing })
				if len(verbs) > 0 {
					few.Rules = append(few.Rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
				}
			}
		}
	}
	_, err := s.Client.CoreV1().ServiceAccounts(accountNamespace).Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.Client.RbacV1().ClusterRoles().Create(s.ctx, few, metav1.CreateOptions{})
	s.must(err)
	_, err = s.Client.RbacV1().ClusterRoleBindings().Create(s.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: accountNamespace, Name: name}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually(name+" has its rights", func() error { // the authorizer receives them through a watch
		for _, has := range rightsOf(few) {
			verb, resource, _ := strings.Cut(has, " ")
			group, plural, grouped := strings.Cut(resource, "/")
			if !grouped {
				group, plural = "", resource
			}
			got, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(s.ctx, &authzv1.SubjectAccessReview{
				Spec: authzv1.SubjectAccessReviewSpec{
					User:               "system:serviceaccount:" + accountNamespace + ":" + name,
					ResourceAttributes: &authzv1.ResourceAttributes{Verb: verb, Group: group, Resource: plural},
				},
			}, metav1.CreateOptions{})
			if err != nil || !got.Status.Allowed {
				return fmt.Errorf("%s: not allowed (%w)", has, err)
			}
		}
		return nil
	})
}

// refused reports whether the API server has denied a request of an account for lack of one permission.
func (s *scene) refused(name, missing string) bool {
	s.Helper()
	requests, err := s.Requests()
	s.must(err)
	return slices.ContainsFunc(requests, func(r testcluster.Request) bool {
		return r.User == "system:serviceaccount:"+accountNamespace+":"+name && r.Code == 403 && right(r.Verb, r.Group, r.Resource) == missing
	})
}

// runsAllTests reports whether all tests of the package run.
func runsAllTests() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}

// checkRules compares all requests of sluice with its permissions: no request without permission, and no permission
// without a request.
func (l *lab) checkRules() error {
	granted, err := l.granted(context.Background())
	if err != nil {
		return err
	}
	// Of deploy/kustomize/components/kubectl: those of the ClusterRole system:auth-delegator.
	granted = append(granted, right("create", "authentication.k8s.io", "tokenreviews"), right("create", "authorization.k8s.io", "subjectaccessreviews"))
	// Of deploy/kustomize/components/controller: the ClusterRole sluice-reports, where the kinds are installed.
	granted = append(granted, right("patch", "sluice.dev", "nodereports"), right("watch", "sluice.dev", "endpointloads"))
	requests, err := l.Requests()
	if err != nil {
		return err
	}
	used, problems := map[string]bool{}, []error{}
	for _, r := range requests {
		if r.User != account {
			continue
		}
		resource := r.Resource
		if r.Subresource != "" {
			resource += "/" + r.Subresource
		}
		what := right(r.Verb, r.Group, resource)
		if !slices.Contains(granted, what) && !used[what] {
			problems = append(problems, fmt.Errorf("%s: requested (%s: %d) and not granted", what, r.URI, r.Code))
		}
		used[what] = true
	}
	for _, g := range granted {
		if !used[g] {
			problems = append(problems, fmt.Errorf("%s: granted, and never requested", g))
		}
	}
	fmt.Fprintf(os.Stderr, "cluster tests: %d requests of sluice: %s\n", len(requests), strings.Join(slices.Sorted(maps.Keys(used)), ", "))
	return errors.Join(problems...)
}
