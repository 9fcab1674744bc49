package deploy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubelets performs the next step of the scheduler and the kubelet for each Pod of the two namespaces.
func (c *cluster) kubelets() {
	c.Helper()
	for _, namespace := range []string{"sluice-system", "kube-system"} {
		list, err := c.Client.CoreV1().Pods(namespace).List(c.Context(), metav1.ListOptions{})
		if err != nil {
			c.Fatal(err)
		}
		for i := range list.Items {
			if err := c.kubelet(c.Context(), &list.Items[i]); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				c.Fatalf("Pod %s: %v", list.Items[i].Name, err)
			}
		}
	}
}

func (c *cluster) kubelet(ctx context.Context, pod *corev1.Pod) error {
	status := func(phase corev1.PodPhase, ready bool) error {
		if err := c.SetPodStatus(ctx, pod.Namespace, pod.Name, func(s *corev1.PodStatus) {
			s.Phase = phase
			if s.StartTime == nil {
				now := metav1.Now()
				s.StartTime = &now
			}
		}); err != nil {
			return err
		}
		return c.SetPodReady(ctx, pod.Namespace, pod.Name, ready)
	}
	job := pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	p, runs := c.runs[pod.UID]
	switch {
	case pod.Spec.NodeName == "":
		terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		return c.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			Target:     corev1.ObjectReference{Kind: "Node", Name: terms[0].MatchFields[0].Values[0]},
		}, metav1.CreateOptions{})
	case pod.DeletionTimestamp != nil:
		if runs {
			// As process 1, a Go program that gets SIGTERM before it handles signals exits with 2 and prints nothing.
			err, exit := p.End(syscall.SIGTERM, timeout), (*exec.ExitError)(nil)
			early := errors.As(err, &exit) && exit.ExitCode() == 2 && p.String() == ""
			if err != nil && !job && !early {
				c.Errorf("sluice ended: %v\n%s", err, p)
			}
			delete(c.runs, pod.UID)
		}
		return c.RemovePod(ctx, pod.Namespace, pod.Name)
	case pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName == "n1" && pod.Namespace == "sluice-system":
		if err := c.startPod(ctx, pod); err != nil {
			return err
		}
		return status(corev1.PodRunning, false)
	case pod.Status.Phase == corev1.PodPending && job:
		return status(corev1.PodSucceeded, false)
	case pod.Status.Phase == corev1.PodPending:
		return status(corev1.PodRunning, true)
	case runs && job:
		delete(c.runs, pod.UID)
		if err := p.Wait(); err != nil {
			return fmt.Errorf("%w\n%s", err, p)
		}
		return status(corev1.PodSucceeded, false)
	case runs && !podReady(pod):
		select {
		case <-p.Ended():
			return fmt.Errorf("it has ended: %w\n%s", p.Wait(), p)
		default:
		}
		main := pod.Spec.Containers[0]
		if code, _ := c.get(main, main.ReadinessProbe); code == 200 {
			return status(corev1.PodRunning, true)
		}
	}
	return nil
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// startPod mounts the Pod's volumes, runs its init containers and starts its container.
func (c *cluster) startPod(ctx context.Context, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			config, err := c.Client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for name, text := range config.Data {
				c.write(c.config, name, withoutTableSize(text))
			}
		case v.Projected != nil:
			token, err := c.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
			if err != nil {
				return err
			}
			c.write(c.secret, "token", token)
		case v.HostPath == nil || v.HostPath.Path != "/run/sluice":
			return fmt.Errorf("volume %+v", v)
		}
	}
	for _, init := range pod.Spec.InitContainers {
		if out, err := c.run(c.container(init)); err != nil {
			return fmt.Errorf("init container %s: %w\n%s", init.Name, err, out)
		}
	}
	run := c.container(pod.Spec.Containers[0])
	run.Env = append(run.Env, "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443")
	c.runs[pod.UID] = c.start(run)
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		c.last = c.runs[pod.UID]
	}
	return nil
}
