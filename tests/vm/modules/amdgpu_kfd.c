// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * /dev/kfd and /sys/class/kfd/kfd/topology: one node for each NUMA node, one for each GPU, as kfd_topology.c names the
 * files and their fields. The GPU is one of a Radeon RX 7900 XTX: gfx1100, 96 compute units, 24 GiB.
 */
#include "amdgpu.h"

#include <linux/device.h>
#include <linux/fs.h>
#include <linux/nodemask.h>
#include <linux/topology.h>

#include "stand_in.h"

#define MAX_NODES 16

struct node {
	struct kobject object, banks, bank;
	struct pci_dev *pci;
	int numa_node, render_minor;
	bool used;
};

static struct node nodes[MAX_NODES];
static struct class *class;
static struct device *device;
static struct kobject *topology, *nodes_folder;
static int major_number;
static DEFINE_MUTEX(nodes_lock);

static int open_node(struct inode *inode, struct file *file)
{
	return 0;
}

static const struct file_operations node_operations = {
	.owner = THIS_MODULE,
	.open = open_node,
};

static struct kobj_attribute gpu_id = {.attr = {.name = "gpu_id", .mode = 0444}};
static struct kobj_attribute name = {.attr = {.name = "name", .mode = 0444}};
static struct kobj_attribute properties = {.attr = {.name = "properties", .mode = 0440}};
static struct kobj_attribute bank_properties = {.attr = {.name = "properties", .mode = 0440}};
static struct kobj_attribute generation_id = {.attr = {.name = "generation_id", .mode = 0440}};
static struct kobj_attribute system_properties = {.attr = {.name = "system_properties", .mode = 0440}};

static ssize_t show_properties(struct node *node, char *out)
{
	struct pci_dev *pci = node->pci;
	unsigned int cores = pci ? 0 : cpumask_weight(cpumask_of_node(node->numa_node));

	if (!pci)
		return sysfs_emit(out, "cpu_cores_count %u\nsimd_count 0\ngfx_target_version 0\n", cores);
	return sysfs_emit(out,
			  "cpu_cores_count 0\nsimd_count 192\nsimd_per_cu 2\nwave_front_size 32\n"
			  "gfx_target_version 110000\nvendor_id %u\ndevice_id %u\nlocation_id %u\ndomain %d\n"
			  "drm_render_minor %d\nunique_id %u\nnum_xcc 1\n",
			  pci->vendor, pci->device, pci_dev_id(pci), pci_domain_nr(pci->bus), node->render_minor,
			  0xa0000000u + pci_dev_id(pci));
}

static ssize_t show(struct kobject *object, struct attribute *attribute, char *out)
{
	struct node *node = container_of(object, struct node, object);

	if (attribute == &bank_properties.attr)
		return sysfs_emit(out, "heap_type 1\nsize_in_bytes %llu\nflags 0\nwidth 384\nmem_clk_max 1249\n", 24ull << 30);
	if (attribute == &gpu_id.attr)
		return sysfs_emit(out, "%u\n", node->pci ? pci_dev_id(node->pci) : 0);
	if (attribute == &name.attr)
		return sysfs_emit(out, "%s\n", node->pci ? "ip discovery" : "");
	return show_properties(node, out);
}

static ssize_t show_topology(struct kobject *object, struct attribute *attribute, char *out)
{
	if (attribute == &generation_id.attr)
		return sysfs_emit(out, "2\n");
	return sysfs_emit(out, "platform_oem 0\nplatform_id 0\nplatform_rev 0\n");
}

static void release(struct kobject *object)
{
}

static const struct sysfs_ops node_show = {.show = show}, topology_show = {.show = show_topology};
static const struct kobj_type node_type = {.release = release, .sysfs_ops = &node_show};
static struct kobject topology_object;
static const struct kobj_type topology_type = {.release = release, .sysfs_ops = &topology_show};

static void place(struct kobject *object, const struct kobj_type *type, struct kobject *parent, const char *called)
{
	if (kobject_init_and_add(object, (struct kobj_type *)type, parent, "%s", called))
		pr_err("kfd: no folder %s\n", called);
}

static void add(int numa_node, struct pci_dev *pci, int render_minor)
{
	struct node *node;
	char called[8];
	int number;

	mutex_lock(&nodes_lock);
	for (number = 0; number < MAX_NODES && nodes[number].used; number++)
		;
	if (number < MAX_NODES) {
		node = &nodes[number];
		*node = (struct node){.pci = pci, .numa_node = numa_node, .render_minor = render_minor, .used = true};
		snprintf(called, sizeof(called), "%d", number);
		place(&node->object, &node_type, nodes_folder, called);
		if (sysfs_create_file(&node->object, &gpu_id.attr) || sysfs_create_file(&node->object, &name.attr) ||
		    sysfs_create_file(&node->object, &properties.attr))
			pr_err("kfd: no files for node %d\n", number);
		if (pci) {
			place(&node->banks, &node_type, &node->object, "mem_banks");
			place(&node->bank, &node_type, &node->banks, "0");
			if (sysfs_create_file(&node->bank, &bank_properties.attr))
				pr_err("kfd: no memory bank for node %d\n", number);
		}
	}
	mutex_unlock(&nodes_lock);
}

static void drop(struct node *node)
{
	if (node->pci) {
		kobject_put(&node->bank);
		kobject_put(&node->banks);
	}
	kobject_put(&node->object);
	node->used = false;
}

void kfd_add(struct pci_dev *pci, int render_minor)
{
	add(dev_to_node(&pci->dev), pci, render_minor);
	dev_info(&pci->dev, "kfd: added device %04x:%04x\n", pci->vendor, pci->device);
}

void kfd_drop(struct pci_dev *pci)
{
	int number;

	mutex_lock(&nodes_lock);
	for (number = 0; number < MAX_NODES; number++)
		if (nodes[number].used && nodes[number].pci == pci)
			drop(&nodes[number]);
	mutex_unlock(&nodes_lock);
}

int kfd_load(void)
{
	int numa_node;

	major_number = register_chrdev(0, "kfd", &node_operations);
	if (major_number < 0)
		return major_number;
	class = stand_in_class("kfd");
	device = device_create(class, NULL, MKDEV(major_number, 0), NULL, "kfd");
	place(&topology_object, &topology_type, &device->kobj, "topology");
	topology = &topology_object;
	if (sysfs_create_file(topology, &generation_id.attr) || sysfs_create_file(topology, &system_properties.attr))
		pr_err("kfd: no files of the topology\n");
	nodes_folder = kobject_create_and_add("nodes", topology);
	for_each_online_node(numa_node)
		add(numa_node, NULL, 0);
	return 0;
}

void kfd_unload(void)
{
	int number;

	for (number = 0; number < MAX_NODES; number++)
		if (nodes[number].used)
			drop(&nodes[number]);
	kobject_put(nodes_folder);
	kobject_put(topology);
	device_destroy(class, MKDEV(major_number, 0));
	class_destroy(class);
	unregister_chrdev(major_number, "kfd");
}
