// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * A stand-in for nvidia.ko: binds display functions of NVIDIA, serves character devices of major 195 and what
 * /proc/driver/nvidia shows, and reports a GPU that no longer answers in the words of the real driver.
 */
#include <linux/fs.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "stand_in.h"

#define VERSION_TEXT "570.133.07"
#define MAJOR_NUMBER 195
#define CONTROL_MINOR 255
#define MAX_GPUS 8

struct gpu {
	struct pci_dev *pci;
	struct drm_device *drm;
	struct proc_dir_entry *proc;
};

static struct gpu gpus[MAX_GPUS];
static DEFINE_MUTEX(gpus_lock);
static struct proc_dir_entry *proc_root, *proc_gpus;

DEFINE_DRM_GEM_FOPS(drm_operations);
static const struct drm_driver drm_driver_description = {
	.driver_features = DRIVER_GEM | DRIVER_RENDER,
	.fops = &drm_operations,
	.name = "nvidia-drm",
	.desc = "a stand-in for tests",
	STAND_IN_DATE
};

static int show_version(struct seq_file *out, void *unused)
{
	seq_puts(out, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " VERSION_TEXT
		      "  Release Build  (stand-in@tests)\n");
	seq_puts(out, "GCC version:  gcc\n");
	return 0;
}

static int show_information(struct seq_file *out, void *unused)
{
	struct gpu *gpu = out->private;
	const char *name = pci_name(gpu->pci);

	seq_puts(out, "Model: \t\t NVIDIA GeForce RTX 4090\n");
	seq_printf(out, "IRQ:   \t\t %u\n", gpu->pci->irq);
	seq_printf(out, "GPU UUID: \t GPU-00000000-0000-4000-8000-%08x%04x\n", gpu->pci->bus->number, gpu->pci->devfn);
	seq_puts(out, "Video BIOS: \t 95.02.3c.40.b1\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n");
	seq_puts(out, "DMA Mask: \t 0x7fffffffffff\n");
	seq_printf(out, "Bus Location: \t %s\nDevice Minor: \t %td\n", name, gpu - gpus);
	seq_puts(out, "GPU Firmware: \t " VERSION_TEXT "\nGPU Excluded:\t No\n");
	return 0;
}

/* Opening a GPU touches it; the real driver notices there that it is gone. */
static int open_node(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	int result = 0;

	if (minor == CONTROL_MINOR)
		return 0;
	mutex_lock(&gpus_lock);
	if (minor >= MAX_GPUS || !gpus[minor].pci) {
		result = -ENODEV;
	} else if (stand_in_register(gpus[minor].pci) == ~0u) {
		struct pci_dev *pci = gpus[minor].pci;

		pr_err("NVRM: Xid (PCI:%04x:%02x:%02x): 79, pid=%d, name=%s, GPU has fallen off the bus.\n",
		       pci_domain_nr(pci->bus), pci->bus->number, PCI_SLOT(pci->devfn), task_pid_nr(current),
		       current->comm);
		pr_err("NVRM: GPU %s: GPU has fallen off the bus.\n", pci_name(pci));
		result = -EIO;
	}
	mutex_unlock(&gpus_lock);
	return result;
}

static const struct file_operations node_operations = {
	.owner = THIS_MODULE,
	.open = open_node,
};

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct drm_device *drm = stand_in_register_card(pci, &drm_driver_description);
	int minor, result = -ENOSPC;

	if (IS_ERR(drm)) {
		if (PTR_ERR(drm) == -EIO)
			pr_err("NVRM: GPU %s: GPU does not answer.\n", pci_name(pci));
		return PTR_ERR(drm);
	}
	mutex_lock(&gpus_lock);
	for (minor = 0; minor < MAX_GPUS && result; minor++) {
		struct gpu *gpu = &gpus[minor];

		if (gpu->pci)
			continue;
		gpu->pci = pci;
		gpu->drm = drm;
		gpu->proc = proc_mkdir(pci_name(pci), proc_gpus);
		if (gpu->proc)
			proc_create_single_data("information", 0444, gpu->proc, show_information, gpu);
		pci_set_drvdata(pci, gpu);
		result = 0;
	}
	mutex_unlock(&gpus_lock);
	if (result)
		stand_in_remove_card(pci, drm);
	return result;
}

static void remove(struct pci_dev *pci)
{
	struct gpu *gpu = pci_get_drvdata(pci);

	mutex_lock(&gpus_lock);
	proc_remove(gpu->proc);
	stand_in_remove_card(pci, gpu->drm);
	memset(gpu, 0, sizeof(*gpu));
	mutex_unlock(&gpus_lock);
}

static const struct pci_device_id ids[] = {STAND_IN_DISPLAY(PCI_VENDOR_ID_NVIDIA), {}};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver pci_driver_description = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

static int __init load(void)
{
	int result = __register_chrdev(MAJOR_NUMBER, 0, 256, "nvidia-frontend", &node_operations);

	if (result)
		return result;
	proc_root = proc_mkdir("driver/nvidia", NULL);
	proc_gpus = proc_mkdir("gpus", proc_root);
	proc_create_single("version", 0444, proc_root, show_version);
	pr_info("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  " VERSION_TEXT "\n");
	result = pci_register_driver(&pci_driver_description);
	if (result) {
		proc_remove(proc_root);
		__unregister_chrdev(MAJOR_NUMBER, 0, 256, "nvidia-frontend");
	}
	return result;
}

static void __exit unload(void)
{
	pci_unregister_driver(&pci_driver_description);
	proc_remove(proc_root);
	__unregister_chrdev(MAJOR_NUMBER, 0, 256, "nvidia-frontend");
}

module_init(load);
module_exit(unload);
MODULE_DESCRIPTION("A stand-in for tests");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(VERSION_TEXT);
